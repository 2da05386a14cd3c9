"""The loaded model: forward pass, capability probe, layer hooks."""
