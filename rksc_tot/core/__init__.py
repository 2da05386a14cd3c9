"""Basic types of all rooms. Nothing here imports torch."""
