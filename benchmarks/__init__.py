"""Measurements of speed, memory and quality: ``python -m benchmarks`` lists them, ``python -m benchmarks NAME`` runs one."""
