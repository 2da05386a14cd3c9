"""Which jobs get rows in the next forward pass."""
