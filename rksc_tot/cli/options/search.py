"""Options of searches: strategy, sampling, verifier, approximations, limits and problems."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rksc_tot.cli.options.arguments import Seed, importable_here
from rksc_tot.cli.options.plugins import FORM, plug_in
from rksc_tot.cli.options.thoughts import ThoughtOptions
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.one_line import settings_of

if TYPE_CHECKING:
    from rksc_tot.core.budget import Budget
    from rksc_tot.core.task import Task
    from rksc_tot.engine.base import Sampling
    from rksc_tot.search.approximate.rksc import RKSC
    from rksc_tot.strategies import Strategy


@dataclass(frozen=True)
class StrategyOptions:
    """How to search."""

    strategy: Annotated[
        str, typer.Option(help="A name from `rksc-tot strategies`, or your own as module:attribute.")
    ] = "bfs"
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the strategy, such as k=16. May be given several times."),
    ] = None
    seed: Seed = 0

    def strategy_for(self, task: Task) -> Strategy:
        """The strategy with the settings of ``--set`` and, for all others, of ``task.strategy_settings``. Raises ConfigError."""
        from rksc_tot.api.setup import strategy_settings_of
        from rksc_tot.strategies import STRATEGIES

        importable_here(self.strategy)
        settings = strategy_settings_of(task, self.strategy) | settings_of(self.settings or [])
        return STRATEGIES.make(self.strategy, **settings)


@dataclass(frozen=True)
class SamplingOptions:
    """How thoughts are sampled (default: as the task says)."""

    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens only.")] = None
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that have this probability together.")
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(help="Sample from tokens with at least this share of the likeliest token's probability."),
    ] = None

    def sampling(self) -> Sampling | None:
        """The sampling, None without options. Raises ConfigError if a value is out of range."""
        from rksc_tot.engine.base import Sampling

        names = ("temperature", "top_k", "top_p", "min_p")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return Sampling(**given) if given else None


@dataclass(frozen=True)
class SearchOptions(ThoughtOptions, SamplingOptions, StrategyOptions):
    """Scores and approximations."""

    verifier: Annotated[
        str | None,
        typer.Option(
            metavar=FORM,
            help="What scores thoughts: a name from `rksc-tot verifiers`, or your own as module:attribute, such as "
            "likelihood:of=path. Default: lm_value if the task has a question, else likelihood.",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        typer.Option(
            help="Let the verifier exit early as this calibration allows: a file of `rksc-tot calibrate`, or `embedded`. "
            "Default: never."
        ),
    ] = None
    sibling: Annotated[
        float | None,
        typer.Option(help="Merge siblings of at least this similarity, 0 to 1. Default: merge equal thoughts only."),
    ] = None
    audit: Annotated[
        float | None,
        typer.Option(
            help="Share of approximate decisions that are repeated in full to measure their error. Default: 0.03."
        ),
    ] = None

    def keywords_for(self, task: Task, budget: Budget) -> dict[str, Any]:
        """The keyword arguments of :func:`~rksc_tot.solve.solve`. Raises ConfigError if an option is invalid."""
        from rksc_tot.verifiers import VERIFIERS

        return {
            "strategy": self.strategy_for(task),
            "verifier": None
            if self.verifier is None
            else plug_in(VERIFIERS, "--verifier", self.verifier, "likelihood:of=path"),
            "sampling": self.sampling(),
            "budget": budget,
            "seed": self.seed,
            "rksc": self.rksc(),
        }

    def rksc(self) -> RKSC | None:
        """The approximations, with the calibration loaded; None without options.

        Raises
        ------
        ConfigError
            If a value is out of range, or the file is not a calibration.
        """
        from rksc_tot.policies.asks import ASKS
        from rksc_tot.search.approximate.rksc import RKSC

        sibling = None if self.sibling is None else ASKS(tau=self.sibling)
        given = {} if self.audit is None else {"audit": self.audit}
        asked = RKSC(calibration=self.calibration, sibling=sibling, **given)
        return asked.loaded() if (self.calibration, sibling, self.audit) != (None, None, None) else None


@dataclass(frozen=True)
class LimitOptions:
    """Limits of one search."""

    max_tokens: Annotated[int | None, typer.Option(help="Sampled tokens.")] = None
    max_nodes: Annotated[int | None, typer.Option(help="Nodes of the tree.")] = None
    max_verifier_calls: Annotated[int | None, typer.Option(help="Nodes that are scored.")] = None
    max_seconds: Annotated[float | None, typer.Option(help="Seconds.")] = None
    max_kv: Annotated[
        str | None,
        typer.Option("--max-kv", help="KV memory of one search, such as 8MiB. A search that needs more ends."),
    ] = None

    def budget(self) -> Budget:
        """The options as a budget. Raises ConfigError if a limit is invalid."""
        from rksc_tot.core.sizes import kv_bytes

        kv = None if self.max_kv is None else kv_bytes(self.max_kv, "--max-kv")
        return _budget("--max", self.max_tokens, self.max_nodes, self.max_verifier_calls, self.max_seconds, kv)


@dataclass(frozen=True)
class RunLimitOptions:
    """Limits of all searches together."""

    run_max_tokens: Annotated[int | None, typer.Option(help="Sampled tokens.")] = None
    run_max_nodes: Annotated[int | None, typer.Option(help="Nodes of all trees.")] = None
    run_max_verifier_calls: Annotated[int | None, typer.Option(help="Nodes that are scored.")] = None
    run_max_seconds: Annotated[float | None, typer.Option(help="Seconds of the whole run.")] = None

    def budget(self) -> Budget:
        """The options as a budget. Raises ConfigError if a limit is invalid."""
        most = (self.run_max_tokens, self.run_max_nodes, self.run_max_verifier_calls, self.run_max_seconds)
        return _budget("--run-max", *most)


@dataclass(frozen=True)
class ProblemOptions:
    """Problems to learn from (exactly one source)."""

    problems: Annotated[list[str] | None, typer.Argument(help="Problems, one an argument.")] = None
    file: Annotated[
        Path | None,
        typer.Option("--problems", help="A file with a problem on each line, or a .jsonl file as for `rksc-tot run`."),
    ] = None
    training: Annotated[
        bool, typer.Option("--training-puzzles", help="All game-of-24 puzzles that the embedded model was trained on.")
    ] = False
    without: Annotated[
        Path | None, typer.Option(help="Leave out the training puzzles in this csv file with columns Rank and Puzzles.")
    ] = None
    rows: Annotated[str | None, typer.Option(help="Only these ranks of that file, such as 901-1000.")] = None
    most: Annotated[int | None, typer.Option(min=1, help="Use a random choice of at most this many problems.")] = None

    def load(self, seed: int) -> list[str]:
        """The problems. ``seed``: seed of the random choice. Raises ConfigError if there is not exactly one source."""
        from rksc_tot.evaluation.problems import calibration_problems

        return calibration_problems(
            self.problems or [], self.file, self.training, self.without, self.rows, self.most, seed
        )


def _budget(
    prefix: str,
    tokens: int | None,
    nodes: int | None,
    verifier_calls: int | None,
    seconds: float | None,
    kv_bytes: int | None = None,
) -> Budget:
    """A budget from options.

    Raises
    ------
    ConfigError
        If a limit is infinite or not above 0.
    """
    from rksc_tot.core.budget import Budget

    limits = {"tokens": tokens, "nodes": nodes, "verifier_calls": verifier_calls, "seconds": seconds}
    for name, value in limits.items():
        option = f"{prefix}-{name.replace('_', '-')}"
        if value == math.inf:
            raise ConfigError(f"{option} {value} is no limit", hint="leave it out")
        if value is not None and not value > 0:
            raise ConfigError(f"{option} {value} allows no search", hint="give more than 0, or leave it out")
    return Budget.model_validate({**limits, "kv_bytes": kv_bytes})
