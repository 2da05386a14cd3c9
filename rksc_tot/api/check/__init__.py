"""A dry run of a task: its methods one by one, and what a model writes for it."""
