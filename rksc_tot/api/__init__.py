"""The public functions: solve, stream, solve_many, check_task, and their results."""
