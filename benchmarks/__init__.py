"""Benchmarks: ``python -m benchmarks.NAME --json [--quick]``."""
