"""Eviction: when KV is evicted, in which order, what then happens, and how it is counted and logged."""
