"""``compare``: contenders on the problems of a task, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from rksc_tot.api.outcomes import Outcome
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.core.task import Problem, Task
from rksc_tot.engine.base import Engine, Sampling
from rksc_tot.evaluation.comparison_rows import Comparison, Row
from rksc_tot.evaluation.contenders import Contender, choose_contenders, contender_of
from rksc_tot.tasks import load_task
from rksc_tot.tasks.rows.task import RowsTask

if TYPE_CHECKING:
    from pandas import DataFrame

    from rksc_tot.strategies import Strategy


class ComparedRows(list[Row]):
    """The rows of a comparison, in the order of the contenders."""

    def to_dataframe(self) -> DataFrame:
        """The rows as a table of pandas, with the settings of each row in the column ``settings``.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("a DataFrame needs the package pandas", hint="pip install rksc-tot[pandas]") from None
        return pd.DataFrame([row.model_dump() for row in self], columns=list(Row.model_fields))


def compare(
    task: Task | str,
    problems: Iterable[Any] | None = None,
    contenders: Sequence[Contender | Strategy | str | Mapping[str, Any]] | None = None,
    *,
    engine: Engine | Callable[[], Engine],
    seed: int = 0,
    budget: Budget | None = None,
    sampling: Sampling | None = None,
    concurrency: int = 8,
    on_outcome: Callable[[str, Outcome], None] | None = None,
) -> ComparedRows:
    """Run contenders on the same problems; one row each with solved problems, a 95 % interval and tokens.

    Parameters
    ----------
    task : Task or str
        A task, or the name of an installed one.
    problems : iterable, optional
        Problems of the task, or :class:`~rksc_tot.Problem` objects with ids. By default the rows of a task of rows.
    contenders : sequence, optional
        Names of strategies, strategies, dicts such as ``{"strategy": "beam", "settings": {"b": 4}, "verifier": "likelihood"}``,
        or :class:`Contender` objects. By default every strategy with the settings of the task.
    engine : Engine or callable
        An engine, which is cleared between contenders; or a function that opens a new one for each contender.
    seed, budget, sampling
        Of each search, where a contender does not set its own.
    concurrency : int
        Number of searches at the same time.
    on_outcome : callable, optional
        Called with the contender's label and the outcome as each problem ends.

    Raises
    ------
    ConfigError
        If there are no problems, two problems are the same, or a contender is invalid.
    """
    chosen = load_task(task) if isinstance(task, str) else task
    if problems is None:
        if not isinstance(chosen, RowsTask):
            raise ConfigError("there are no problems to compare on", hint="give a list of problems")
        problems = chosen.problems
    if isinstance(problems, str | Mapping):
        raise ConfigError(f"the problems are {shown(problems)}", hint="give a list of problems")
    named = task if isinstance(task, str) else ""
    lineup = choose_contenders(named) if contenders is None else [contender_of(each) for each in contenders]
    refuse_same_labels(lineup)
    if not isinstance(engine, Engine) and not callable(engine):
        raise ConfigError(f"the engine is {shown(engine)}", hint="load_engine() returns one")
    comparison = Comparison(
        list(problems),
        (lambda: engine) if isinstance(engine, Engine) else engine,
        seed,
        budget or Budget(),
        concurrency,
        on_outcome or (lambda label, outcome: None),
        sampling,
        chosen,
        _clear if isinstance(engine, Engine) else (lambda opened: opened.close()),
    )
    rows = ComparedRows()
    for contender in lineup:
        rows.append(comparison.run(contender, rows))
    return rows


def refuse_same_labels(contenders: Sequence[Contender]) -> None:
    """Raise ConfigError if there is no contender, or if two have the same label."""
    if not contenders:
        raise ConfigError("there are no contenders", hint="give at least one, such as 'beam'")
    seen: set[str] = set()
    for contender in contenders:
        if contender.label in seen:
            raise ConfigError(f"two contenders have the label {contender.label!r}", hint="give each a label of its own")
        seen.add(contender.label)


def problems_for(task: Task, given: Sequence[Any], limit: int | None) -> list[Any]:
    """The given problems, else the rows of a task of rows; at most ``limit``."""
    own: Sequence[Problem] = task.problems if isinstance(task, RowsTask) else ()
    return list(islice(given or own, limit))


def _clear(engine: Engine) -> None:
    """Drop the KV of an engine that the next contender uses too."""
    clear = getattr(engine, "clear", None)
    if clear is not None:
        clear()
