"""The kinds of work that the engine runs."""
