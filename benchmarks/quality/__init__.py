"""Exactness, early exit, prompt variants."""
