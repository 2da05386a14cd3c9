"""Time: throughput, attention, scale."""
