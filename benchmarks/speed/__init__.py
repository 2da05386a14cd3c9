"""Throughput, attention, scale."""
