"""The vocabulary of the project. Nothing here imports torch."""
