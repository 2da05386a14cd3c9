"""The registry of tasks. An installed package adds a task through the entry-point group ``rksc_tot.tasks``."""

from __future__ import annotations

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.task import Task
from rksc_tot.tasks.gym import PREFIX, GymTask

TASKS: Registry[Task] = Registry(
    kind="task",
    base=Task,
    group="rksc_tot.tasks",
    built_in={
        "arithmetic": "rksc_tot.tasks.puzzles.arithmetic:ArithmeticChain",
        "calculator": "rksc_tot.tasks.tools.calculator:Calculator",
        "code": "rksc_tot.tasks.tools.code:Code",
        "countdown": "rksc_tot.tasks.puzzles.countdown:Countdown",
        "crossword": "rksc_tot.tasks.puzzles.crossword:Crossword",
        "game24": "rksc_tot.tasks.game24.task:Game24",
        "game24-chain": "rksc_tot.tasks.game24.task:whole_chains",
        "sudoku4": "rksc_tot.tasks.puzzles.sudoku:Sudoku4",
    },
)


def load_task(name: str) -> Task:
    """The task of that name, or of ``module:attribute``: a class, an object, or a function that returns a task.

    ``gym:NAME`` is a generator of reasoning-gym.

    Raises
    ------
    ConfigError
        If there is no such task, or it cannot be imported or created.
    MissingExtra
        For ``gym:NAME`` without reasoning-gym.
    """
    prefix, colon, rest = name.partition(":")
    if colon and prefix == "rows":
        raise ConfigError(f"{name!r} has no prompt here", hint="make the task with rows_task, or give --prompt")
    return GymTask(rest) if colon and prefix == PREFIX else TASKS.make(name)
