"""Tree-of-thoughts search on one shared KV cache.

>>> from rksc_tot import load_engine, solve
>>> result = solve("game24", "4 5 6 10", engine=load_engine(), seed=0)
>>> print(result.answer, result.ledger.prefill_saved)

Every name is loaded when it is first used; importing the package loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rksc_tot.api.check.check_task import check_task
    from rksc_tot.api.jsonl_reader import read_results
    from rksc_tot.api.outcomes import Outcome
    from rksc_tot.api.result import Result
    from rksc_tot.api.solve import asolve, astream, solve, stream
    from rksc_tot.api.solve_many import asolve_many, solve_many
    from rksc_tot.cache.kv_budget.shared_kv_budget import SharedKVBudget
    from rksc_tot.core.budget import Budget
    from rksc_tot.core.errors import (
        CacheError,
        ConfigError,
        ConstraintError,
        ContextOverflow,
        EngineError,
        MissingExtra,
        ModelLoadError,
        RkscTotError,
        TaskError,
        UnsupportedModel,
        VerifierError,
    )
    from rksc_tot.core.ledger import Ledger
    from rksc_tot.core.task import (
        Constraint,
        Path,
        Problem,
        Question,
        Reject,
        Task,
        Thinking,
        Thought,
        function_task,
        grammar,
        json_schema,
        regex,
    )
    from rksc_tot.core.tree import Node, ReasoningTree
    from rksc_tot.core.version import __version__
    from rksc_tot.engine import engine_from, load_engine
    from rksc_tot.engine.base import Sampling
    from rksc_tot.engine.mock.engine import MockEngine
    from rksc_tot.evaluation.calibration.calibrate import calibrate
    from rksc_tot.evaluation.compare import compare
    from rksc_tot.search.approximate.calibration import Calibration
    from rksc_tot.search.approximate.rksc import RKSC
    from rksc_tot.strategies import Strategy
    from rksc_tot.tasks.rows.task import rows_task
    from rksc_tot.verifiers import Verifier, prm, verifier

__all__ = [
    "RKSC",
    "Budget",
    "CacheError",
    "Calibration",
    "ConfigError",
    "Constraint",
    "ConstraintError",
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
    "SharedKVBudget",
    "Strategy",
    "Task",
    "TaskError",
    "Thinking",
    "Thought",
    "UnsupportedModel",
    "Verifier",
    "VerifierError",
    "__version__",
    "asolve",
    "asolve_many",
    "astream",
    "calibrate",
    "check_task",
    "compare",
    "engine_from",
    "function_task",
    "grammar",
    "json_schema",
    "load_engine",
    "prm",
    "read_results",
    "regex",
    "rows_task",
    "solve",
    "solve_many",
    "stream",
    "verifier",
]

_HOME = {
    "api.check.check_task": ("check_task",),
    "api.jsonl_reader": ("read_results",),
    "api.outcomes": ("Outcome",),
    "api.result": ("Result",),
    "api.solve": ("asolve", "astream", "solve", "stream"),
    "api.solve_many": ("asolve_many", "solve_many"),
    "cache.kv_budget.shared_kv_budget": ("SharedKVBudget",),
    "core.budget": ("Budget",),
    "core.errors": (
        "CacheError",
        "ConfigError",
        "ConstraintError",
        "ContextOverflow",
        "EngineError",
        "MissingExtra",
        "ModelLoadError",
        "RkscTotError",
        "TaskError",
        "UnsupportedModel",
        "VerifierError",
    ),
    "core.ledger": ("Ledger",),
    "core.task": (
        "Constraint",
        "Path",
        "Problem",
        "Question",
        "Reject",
        "Task",
        "Thinking",
        "Thought",
        "function_task",
        "grammar",
        "json_schema",
        "regex",
    ),
    "core.tree": ("Node", "ReasoningTree"),
    "core.version": ("__version__",),
    "engine": ("engine_from", "load_engine"),
    "engine.base": ("Sampling",),
    "engine.mock.engine": ("MockEngine",),
    "evaluation.calibration.calibrate": ("calibrate",),
    "evaluation.compare": ("compare",),
    "search.approximate.calibration": ("Calibration",),
    "search.approximate.rksc": ("RKSC",),
    "strategies": ("Strategy",),
    "tasks.rows.task": ("rows_task",),
    "verifiers": ("Verifier", "prm", "verifier"),
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
