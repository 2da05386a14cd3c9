"""Exact tree attention in one flat pass."""
