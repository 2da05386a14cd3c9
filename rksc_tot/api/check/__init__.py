"""``check_task``: calls the methods of a task one by one, and a model on the task."""
