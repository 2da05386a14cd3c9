"""The contenders of ``rksc-tot compare``. Settings that a contender does not set are the defaults of ``solve``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.engine.base import Sampling

if TYPE_CHECKING:
    from rksc_tot.strategies import Strategy
    from rksc_tot.verifiers import Verifier

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
        Name of the task; empty: the task of the comparison.
    strategy : str or Strategy
        A strategy, or the name of one.
    options : Mapping
        Settings of a strategy given by name that differ from ``task.strategy_settings``.
    verifier : str or Verifier, optional
        The verifier or its name; by default that of the task. ``EXACT``: the task's own check, which knows the right answer.
    equals : str, optional
        Label of an earlier row. This contender spends as many tokens a problem as that row.
    price : str, optional
        Label of an earlier row that gives the cost of one chain. The setting ``n`` follows from ``equals`` and ``price``.
    currency : {"sampled", "computed"}
        The tokens that count besides verifier tokens: tokens sampled, or prefill rows computed.
    sampling : Sampling, optional
        How thoughts are sampled; by default as in the comparison.
    budget : Budget, optional
        Budget of each search; by default that of the comparison.
    """

    label: str
    task: str
    strategy: str | Strategy
    options: Mapping[str, Any] = field(default_factory=dict)
    verifier: str | Verifier | None = None
    equals: str | None = None
    price: str | None = None
    currency: Currency = "sampled"
    sampling: Sampling | None = None
    budget: Budget | None = None

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
            raise ConfigError(
                f"there is no row {label!r}",
                hint=f"{did_you_mean(label, labels)}there are {', '.join(map(repr, labels))}",
            )
    chosen = [contender for contender in lineup if not only or contender.label in only]
    for at, contender in enumerate(chosen):
        contender.check_needs([earlier.label for earlier in chosen[:at]])
    return chosen


KEYS = ("label", "strategy", "settings", "verifier", "sampling", "budget")


def contender_of(given: Contender | Strategy | str | Mapping[str, Any]) -> Contender:
    """A contender on the task of the comparison, from a strategy or its name, or from a dict.

    The keys of a dict are ``strategy`` and, if needed, ``label``, ``settings`` of the strategy, ``verifier``, and dicts
    ``sampling`` and ``budget``. A verifier with settings is a dict with its ``name``.

    Raises
    ------
    ConfigError
        If a key, a name or a value is invalid.
    """
    from rksc_tot.strategies import STRATEGIES, Strategy
    from rksc_tot.verifiers import VERIFIERS

    if isinstance(given, Contender):
        return given
    if isinstance(given, str):
        given = {"strategy": given}
    if isinstance(given, Strategy):
        settings = {name: value for name, value in given.describe().items() if name != "name"}
        return Contender(_label(given.describe()["name"], settings), "", given)
    other: object = given
    if not isinstance(other, Mapping) or not isinstance(given.get("strategy"), str):
        raise ConfigError(f"a contender is {shown(given)}", hint='name its strategy, as in {"strategy": "beam"}')
    for key in given:
        if key not in KEYS:
            raise ConfigError(
                f"a contender has no {key!r}", hint=f"{did_you_mean(str(key), KEYS)}there are {', '.join(KEYS)}"
            )
    strategy, settings = given["strategy"], dict(given.get("settings") or {})
    STRATEGIES.make(strategy, **settings)
    verifier = given.get("verifier")
    if isinstance(verifier, Mapping):
        made = dict(verifier)
        verifier = VERIFIERS.make(str(made.pop("name", "")), **made)
    elif isinstance(verifier, str) and verifier != EXACT:
        VERIFIERS.make(verifier)
    sampling, budget = given.get("sampling"), given.get("budget")
    return Contender(
        str(given.get("label") or _label(strategy, settings)),
        "",
        strategy,
        settings,
        verifier,
        sampling=Sampling(**sampling) if isinstance(sampling, Mapping) else sampling,
        budget=Budget(**budget) if isinstance(budget, Mapping) else budget,
    )


def _label(name: str, settings: Mapping[str, Any]) -> str:
    return " ".join([name, *(f"{setting}={value}" for setting, value in settings.items())])
