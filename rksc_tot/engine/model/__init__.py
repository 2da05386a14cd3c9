"""The loaded model: forward pass, capability probe, hooks."""
