"""Tasks by name: the built-in ones and those of installed packages."""

from rksc_tot.tasks.registry import TASKS, load_task

__all__ = ["TASKS", "load_task"]
