"""Which KV leaves first when room is needed."""
