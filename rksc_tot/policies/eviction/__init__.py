"""Eviction policies: which KV is evicted first when room is needed."""
