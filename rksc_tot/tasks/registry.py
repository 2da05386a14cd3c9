"""Which tasks there are. An installed package adds one through the entry-point group ``rksc_tot.tasks``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rksc_tot.errors import ConfigError
from rksc_tot.task import Task

GROUP = "rksc_tot.tasks"
BUILT_IN = {
    "game24": "rksc_tot.tasks.game24:Game24",
    "game24-chain": "rksc_tot.tasks.game24:whole_chains",
}


def task_names() -> list[str]:
    """Names of all tasks, sorted."""
    return sorted(_found())


def load_task(name: str) -> Task:
    """The task of that name.

    Raises
    ------
    ConfigError
        If there is none, or if the package that brings it cannot be imported.
    """
    made = _factory(name)
    task = made if isinstance(made, Task) else made() if callable(made) else None
    if not isinstance(task, Task):
        raise ConfigError(
            f"task {name!r} is {type(made).__name__}, not a Task", hint=f"correct its {GROUP} entry point"
        )
    return task


def task_summary(name: str) -> str:
    """First line of a task's documentation."""
    made = _factory(name)
    text = inspect.getdoc(made) or (inspect.getdoc(type(made)) if isinstance(made, Task) else "")
    return (text or "").partition("\n")[0]


def _found() -> dict[str, EntryPoint]:
    installed = {point.name: point for point in entry_points(group=GROUP)}
    return installed | {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}


def _factory(name: str) -> Task | Callable[[], Any]:
    found = _found()
    if name not in found:
        raise ConfigError(f"there is no task {name!r}", hint=f"the tasks are {', '.join(sorted(found))}")
    try:
        made: Task | Callable[[], Any] = found[name].load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"task {name!r} cannot be imported: {reason}", hint="reinstall the package it is in"
        ) from error
    return made
