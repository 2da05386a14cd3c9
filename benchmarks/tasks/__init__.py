"""Benchmarks of what tasks may ask of an engine."""
