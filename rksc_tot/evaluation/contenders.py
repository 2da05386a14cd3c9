"""The contenders of ``rksc-tot compare``. Settings that a contender does not set are the defaults of ``solve``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rksc_tot.core.errors import ConfigError

Currency = Literal["sampled", "computed"]
EXACT = "exact checker"


@dataclass(frozen=True)
class Contender:
    """One row of a comparison.

    Parameters
    ----------
    label : str
        The name in the table.
    task : str
        Name of the task.
    strategy : str
    options : Mapping
        Settings of the strategy that differ from ``task.strategy_settings``.
    verifier : str, optional
        Name of the verifier; by default that of the task. ``EXACT``: the task's own check, which knows the right answer.
    equals : str, optional
        Label of an earlier row. This contender spends as many tokens a problem as that row.
    price : str, optional
        Label of an earlier row that gives the cost of one chain. The setting ``n`` follows from ``equals`` and ``price``.
    currency : {"sampled", "computed"}
        The tokens that count besides verifier tokens: tokens sampled, or prefill rows computed.
    """

    label: str
    task: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | None = None
    equals: str | None = None
    price: str | None = None
    currency: Currency = "sampled"

    def check_needs(self, labels: Collection[str]) -> None:
        """Raise ConfigError unless the rows ``equals`` and ``price`` are among the ``labels`` of earlier rows."""
        missing = [repr(label) for label in (self.equals, self.price) if label is not None and label not in labels]
        if missing:
            raise ConfigError(f"{self.label!r} needs {' and '.join(missing)}", hint="choose these rows too, before it")


COT = "CoT greedy"
VOTES = "self-consistency n=20"
TOT = "ToT-BFS b=5"

LINEUPS: dict[str, tuple[Contender, ...]] = {
    "game24": (
        Contender(COT, "game24-chain", "cot"),
        Contender(VOTES, "game24-chain", "self_consistency"),
        Contender(TOT, "game24", "bfs"),
        Contender("ToT-BFS b=5, random values (control)", "game24", "bfs", verifier="random"),
        Contender("ToT-DFS", "game24", "dfs"),
        Contender("beam b=5", "game24", "beam"),
        Contender(
            "best-of-n with an exact checker, at equal tokens", "game24-chain", "best_of_n",
            verifier=EXACT, equals=TOT, price=VOTES,
        ),
        Contender(
            "best-of-n with an exact checker, at equal computed tokens", "game24-chain", "best_of_n",
            verifier=EXACT, equals=TOT, price=VOTES, currency="computed",
        ),
    ),
}  # fmt: skip


def choose_contenders(task: str, only: Sequence[str] = ()) -> list[Contender]:
    """The contenders of a task, or those with the labels in ``only``.

    A task without an entry in ``LINEUPS`` has one contender for each strategy.

    Raises
    ------
    ConfigError
        If a label is unknown, or a chosen contender needs rows that are not chosen.
    """
    from rksc_tot.strategies import STRATEGIES

    lineup = LINEUPS.get(task) or tuple(Contender(name, task, name) for name in STRATEGIES.names())
    labels = [contender.label for contender in lineup]
    for label in only:
        if label not in labels:
            raise ConfigError(f"there is no row {label!r}", hint=f"there are {', '.join(map(repr, labels))}")
    chosen = [contender for contender in lineup if not only or contender.label in only]
    for at, contender in enumerate(chosen):
        contender.check_needs([earlier.label for earlier in chosen[:at]])
    return chosen
