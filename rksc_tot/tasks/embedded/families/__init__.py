"""The families: tasks with an embedded model, each with its training documents."""
