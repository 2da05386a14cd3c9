"""The front door: solve, stream, many problems, results."""
