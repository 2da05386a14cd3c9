"""KV memory: peak bytes, compression, offload."""
