"""The options of the command, and what they mean to the library."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rksc_tot.errors import ConfigError

if TYPE_CHECKING:
    from rksc_tot.budget import Budget

Model = Annotated[str | None, typer.Option(help="Hub id, folder or GGUF file. [default: the embedded model]")]
Seed = Annotated[int, typer.Option(help="Of every random draw.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to sample in one search.")]
MaxNodes = Annotated[int | None, typer.Option(help="Most nodes of one tree.")]
MaxVerifierCalls = Annotated[int | None, typer.Option(help="Most nodes to have scored in one search.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Most seconds of one search.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the strategy, such as k=16. Repeatable."),
]


class ProblemCommand(TyperCommand):
    """A command whose arguments are problems, which may begin with a minus."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say how to give such a problem where it was taken for an option."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption" and hasattr(error, "message"):  # typer hands the class on nowhere
                error.message += ". A problem that begins with - goes last, after --."
            raise


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


def budget_of(tokens: int | None, nodes: int | None, verifier_calls: int | None, seconds: float | None) -> Budget:
    """The budget of one search.

    Raises
    ------
    ConfigError
        If a limit is not above 0, or infinite.
    """
    from rksc_tot.budget import Budget

    limits = {"tokens": tokens, "nodes": nodes, "verifier_calls": verifier_calls, "seconds": seconds}
    for name, value in limits.items():
        option = f"--max-{name.replace('_', '-')}"
        if value == math.inf:
            raise ConfigError(f"{option} {value} is no limit", hint="leave it out")
        if value is not None and not value > 0:
            raise ConfigError(
                f"{option} {value} leaves nothing to search with", hint="give more than 0, or leave it out"
            )
    return Budget.model_validate(limits)
