"""Tree-of-thoughts search on one shared KV cache.

>>> from rksc_tot import load_engine, solve
>>> result = solve("game24", "4 5 6 10", engine=load_engine(), seed=0)
>>> print(result.answer, result.ledger.prefill_saved)

Every name is loaded when it is first used; importing the package loads neither torch nor transformers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rksc_tot.budget import Budget
    from rksc_tot.calibration import Calibration
    from rksc_tot.calibration.run import calibrate
    from rksc_tot.check import check_task
    from rksc_tot.engine import load_engine
    from rksc_tot.engine.base import Sampling
    from rksc_tot.engine.mock import MockEngine
    from rksc_tot.errors import (
        CacheError,
        ConfigError,
        ContextOverflow,
        EngineError,
        MissingExtra,
        ModelLoadError,
        RkscTotError,
        TaskError,
        UnsupportedModel,
        VerifierError,
    )
    from rksc_tot.ledger import Ledger
    from rksc_tot.lines import read_results
    from rksc_tot.many import asolve_many, solve_many
    from rksc_tot.outcome import Outcome, Problem
    from rksc_tot.rksc import RKSC
    from rksc_tot.solve import Result, asolve, astream, solve, stream
    from rksc_tot.strategies import Strategy
    from rksc_tot.task import Path, Question, Reject, Task, Thought, function_task
    from rksc_tot.tree import Node, ReasoningTree
    from rksc_tot.verifiers import Verifier, verifier

__all__ = [
    "RKSC",
    "Budget",
    "CacheError",
    "Calibration",
    "ConfigError",
    "ContextOverflow",
    "EngineError",
    "Ledger",
    "MissingExtra",
    "MockEngine",
    "ModelLoadError",
    "Node",
    "Outcome",
    "Path",
    "Problem",
    "Question",
    "ReasoningTree",
    "Reject",
    "Result",
    "RkscTotError",
    "Sampling",
    "Strategy",
    "Task",
    "TaskError",
    "Thought",
    "UnsupportedModel",
    "Verifier",
    "VerifierError",
    "asolve",
    "asolve_many",
    "astream",
    "calibrate",
    "check_task",
    "function_task",
    "load_engine",
    "read_results",
    "solve",
    "solve_many",
    "stream",
    "verifier",
]

_HOME = {
    "budget": ("Budget",),
    "calibration": ("Calibration",),
    "calibration.run": ("calibrate",),
    "check": ("check_task",),
    "engine": ("load_engine",),
    "engine.base": ("Sampling",),
    "engine.mock": ("MockEngine",),
    "errors": (
        "CacheError",
        "ConfigError",
        "ContextOverflow",
        "EngineError",
        "MissingExtra",
        "ModelLoadError",
        "RkscTotError",
        "TaskError",
        "UnsupportedModel",
        "VerifierError",
    ),
    "ledger": ("Ledger",),
    "lines": ("read_results",),
    "many": ("asolve_many", "solve_many"),
    "outcome": ("Outcome", "Problem"),
    "rksc": ("RKSC",),
    "solve": ("Result", "asolve", "astream", "solve", "stream"),
    "strategies": ("Strategy",),
    "task": ("Path", "Question", "Reject", "Task", "Thought", "function_task"),
    "tree": ("Node", "ReasoningTree"),
    "verifiers": ("Verifier", "verifier"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps ``rksc_tot.solve`` the function: importing a submodule would put the module of that name in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
