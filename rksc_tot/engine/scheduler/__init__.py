"""Decides which jobs get rows in the next forward pass."""
