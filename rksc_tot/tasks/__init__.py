"""Tasks by name: those built in and those that installed packages bring along."""

from rksc_tot.tasks.registry import TASKS, load_task

__all__ = ["TASKS", "load_task"]
