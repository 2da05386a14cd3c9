"""The game of 24: task, exact solver, embedded model."""
