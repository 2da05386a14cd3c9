"""The options of the command, and what they mean to the library."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rksc_tot.errors import ConfigError

if TYPE_CHECKING:
    from rksc_tot.budget import Budget
    from rksc_tot.rksc import RKSC

Model = Annotated[str | None, typer.Option(help="Hub id, folder or GGUF file. Default: the embedded model.")]
Device = Annotated[str, typer.Option(help="Where the model computes, such as cuda or cuda:1.")]
Dtype = Annotated[str, typer.Option(help="Of its numbers: float32, bfloat16 or float16.")]
KVBudget = Annotated[str, typer.Option("--kv-budget", help="Most KV to keep in memory, such as 64MiB.")]
Eviction = Annotated[
    str,
    typer.Option(help="What goes first when that is full: rsbcm, lru, lfu, random or none; or your own, as a task."),
]
Seed = Annotated[int, typer.Option(help="Of every random draw.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to sample in one search.")]
MaxNodes = Annotated[int | None, typer.Option(help="Most nodes of one tree.")]
MaxVerifierCalls = Annotated[int | None, typer.Option(help="Most nodes to have scored in one search.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Most seconds of one search.")]
MaxKV = Annotated[str | None, typer.Option("--max-kv", help="Most KV of one search, such as 8MiB.")]
RunMaxTokens = Annotated[int | None, typer.Option(help="Most tokens to sample in all searches together.")]
RunMaxNodes = Annotated[int | None, typer.Option(help="Most nodes of all trees together.")]
RunMaxVerifierCalls = Annotated[int | None, typer.Option(help="Most nodes to have scored in all searches together.")]
RunMaxSeconds = Annotated[float | None, typer.Option(help="Most seconds of the whole run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout and nothing else.")]
Calibrated = Annotated[
    str | None,
    typer.Option(
        "--calibration", help="A file `rksc-tot calibrate` wrote, or `embedded`. Default: nothing is decided early."
    ),
]
Sibling = Annotated[
    float | None,
    typer.Option(help="From which σ on (0..1) a thought becomes one with a sibling. Default: only equal ones do."),
]
Audit = Annotated[
    float | None, typer.Option(help="Share of the lossy decisions that are also taken in full. Default: 0.03.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
StrategyName = Annotated[str, typer.Option(help="See `rksc-tot strategies`; or your own, as a task.")]
VerifierName = Annotated[
    str | None,
    typer.Option(
        help="See `rksc-tot verifiers`; or your own, as a task. "
        "Default: lm_value if the task has a question, else likelihood."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the strategy, such as k=16. Repeatable."),
]

QUOTES = 'a problem of several words goes in quotes, such as "4 5 6 10"'


class ProblemCommand(TyperCommand):
    """A command whose arguments are problems, which may begin with a minus or consist of several words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say how to give such a problem where it was taken for an option, or for several arguments."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "message"):  # typer hands the classes of its errors on nowhere
                if type(error).__name__ == "NoSuchOption":
                    error.message += ". A problem that begins with - goes last, after --."
                elif "extra argument" in error.message:
                    error.message += f" - {QUOTES}"
            raise


def importable_here(*names: str | None) -> None:
    """Let the modules of the current folder be imported, after all others, if one of the names is ``module:attribute``."""
    if any(name and ":" in name for name in names) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def settings_of(pairs: Sequence[str]) -> dict[str, Any]:
    """``["k=16", "name=text"]`` as a dict; values are JSON where they can be read as such."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (equals and name.isidentifier()):
            raise typer.BadParameter(f"{pair!r} is not a setting; write name=value, such as k=16", param_hint="--set")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def memory_of(kv_budget: str, eviction: str) -> dict[str, Any]:
    """What the engine is told about memory.

    Raises
    ------
    ConfigError
        If the budget is not a size, or there is no such eviction policy.
    """
    from rksc_tot.cache.size import kv_bytes
    from rksc_tot.policies.eviction import EVICTION

    return {"kv_budget": kv_bytes(kv_budget), "eviction": EVICTION.make(eviction)}


def rksc_of(calibration: str | None, sibling: float | None, audit: float | None) -> RKSC | None:
    """What a search may decide early and share, with the calibration read; None where nothing was asked for.

    Raises
    ------
    ConfigError
        If a value is out of range, or the file is no calibration.
    """
    from rksc_tot.policies.asks import ASKS
    from rksc_tot.rksc import RKSC

    given = {} if audit is None else {"audit": audit}
    asked = RKSC(calibration=calibration, sibling=None if sibling is None else ASKS(tau=sibling), **given)
    return None if calibration is None and sibling is None else asked.loaded()


def budget_of(
    tokens: int | None,
    nodes: int | None,
    verifier_calls: int | None,
    seconds: float | None,
    kv: str | None = None,
    *,
    prefix: str = "--max",
) -> Budget:
    """The budget of one search, or of a run, whose options have another prefix.

    Raises
    ------
    ConfigError
        If a limit is not above 0, or infinite, or no size.
    """
    from rksc_tot.budget import Budget
    from rksc_tot.cache.size import kv_bytes

    limits = {"tokens": tokens, "nodes": nodes, "verifier_calls": verifier_calls, "seconds": seconds}
    for name, value in limits.items():
        option = f"{prefix}-{name.replace('_', '-')}"
        if value == math.inf:
            raise ConfigError(f"{option} {value} is no limit", hint="leave it out")
        if value is not None and not value > 0:
            raise ConfigError(
                f"{option} {value} leaves nothing to search with", hint="give more than 0, or leave it out"
            )
    return Budget.model_validate({**limits, "kv_bytes": None if kv is None else kv_bytes(kv)})
