"""A task whose settings nothing checks before a search, like those of a class."""

from rksc_tot.core.task import Task


def unchecked_task(**options):
    task = Task()
    vars(task).update(options)
    return task
