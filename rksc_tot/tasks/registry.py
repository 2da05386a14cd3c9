"""The registry of tasks. An installed package adds a task through the entry-point group ``rksc_tot.tasks``."""

from __future__ import annotations

from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.task import Task

TASKS: Registry[Task] = Registry(
    kind="task",
    base=Task,
    group="rksc_tot.tasks",
    built_in={
        "calculator": "rksc_tot.tasks.tools.calculator:Calculator",
        "code": "rksc_tot.tasks.tools.code:Code",
        "game24": "rksc_tot.tasks.game24.task:Game24",
        "game24-chain": "rksc_tot.tasks.game24.task:whole_chains",
    },
)


def load_task(name: str) -> Task:
    """The task of that name, or of ``module:attribute``: a class, an object, or a function that returns a task.

    Raises
    ------
    ConfigError
        If there is no such task, or it cannot be imported or created.
    """
    return TASKS.make(name)
