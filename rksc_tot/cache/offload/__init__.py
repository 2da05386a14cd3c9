"""KV outside the device: host memory or a file."""
