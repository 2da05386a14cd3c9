"""The kinds of jobs that the engine runs."""
