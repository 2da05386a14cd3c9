"""Who owns which token's KV. No tensors but in ``arena``."""
