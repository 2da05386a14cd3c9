"""Compression, drafts and offload of KV."""
