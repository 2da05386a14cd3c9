"""Tasks by name: those built in and those that installed packages bring along."""

from rksc_tot.tasks.registry import load_task, task_names, task_summary

__all__ = ["load_task", "task_names", "task_summary"]
