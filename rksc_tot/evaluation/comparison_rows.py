"""Runs contenders on the same problems and compares solved problems and tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from rksc_tot.api.outcomes import Outcome
from rksc_tot.api.setup import strategy_settings_of
from rksc_tot.api.solve_many import asolve_many
from rksc_tot.api.sync import run_async
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import text_of
from rksc_tot.core.task import Path, Problem, Task
from rksc_tot.engine.base import Engine, Sampling
from rksc_tot.evaluation.contenders import EXACT, Contender, Currency
from rksc_tot.evaluation.intervals import wilson
from rksc_tot.evaluation.problems import refuse_repeats
from rksc_tot.search.task_calls import read_verdict
from rksc_tot.tasks import load_task

if TYPE_CHECKING:
    from rksc_tot.strategies import Strategy
    from rksc_tot.verifiers import Verifier


RUNS: dict[Currency, int] = {"sampled": 1, "computed": 3}  # runs until a row spends as much as its goal, see chains_for


class Failure(BaseModel):
    """A problem whose search raised an error. It counts as not solved."""

    problem: str
    error: str


class Row(BaseModel):
    """The results of one contender on all problems."""

    strategy: str
    solved: int = 0
    n: int = 0
    low: float = 0.0
    """Lower end of the 95 % Wilson interval of the share of solved problems."""
    high: float = 1.0
    tokens: int = 0
    """Tokens sampled."""
    prefill_tokens: int = 0
    distinct_tokens: int = 0
    prefill_saved: float = 0.0
    verifier_tokens: int = 0
    nodes: int = 0
    seconds: float = 0.0
    """Wall time of all problems together."""
    unanswered: int = 0
    """Number of searches without an answer."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Why searches have no answer, with counts, the commonest first."""
    settings: dict[str, Any] = Field(default_factory=dict)
    failures: list[Failure] = Field(default_factory=list)

    def spent(self, currency: Currency) -> float:
        """Mean tokens a problem: tokens ``sampled`` or prefill rows ``computed``, plus verifier tokens."""
        own = self.tokens if currency == "sampled" else self.prefill_tokens
        return (own + self.verifier_tokens) / self.n if self.n else 0.0


@dataclass(frozen=True)
class Comparison:
    """Runs contenders on problems.

    Parameters
    ----------
    problems : sequence
        Problems, or :class:`~rksc_tot.Problem` objects with ids.
    open_engine : callable
        Returns a new engine. Each contender has its own, so that no contender reuses KV of another one.
    seed : int
    budget : Budget
        Budget of each search.
    concurrency : int
        Number of searches at the same time. It affects results only through a budget in seconds, or through near ties if the
        model is not ``batch_invariant``.
    on_result : callable
        Called after each problem with the contender's label and the outcome.
    sampling : Sampling, optional
        How thoughts are sampled. Fields that are not set come from the task.
    task : Task, optional
        The task of contenders that name none.
    end : callable
        Called with the engine after each contender.
    """

    problems: Sequence[Any]
    open_engine: Callable[[], Engine]
    seed: int = 0
    budget: Budget = Budget()
    concurrency: int = 8
    on_result: Callable[[str, Outcome], None] = lambda label, outcome: None
    sampling: Sampling | None = None
    task: Task | None = None
    end: Callable[[Engine], None] = lambda engine: engine.close()

    def run(self, contender: Contender, earlier: Sequence[Row] = ()) -> Row:
        """Run one contender on all problems. ``earlier``: rows that it may have to match in tokens.

        Raises
        ------
        ConfigError
            If a row to match is missing in ``earlier``, or two problems are the same.
        """
        refuse_repeats(self._task(contender), [_plain(problem) for problem in self.problems])
        rows = {row.strategy: row for row in earlier}
        contender.check_needs(rows)
        if contender.equals is None or contender.price is None:
            return self._solve(contender)
        goal, price, unit = rows[contender.equals], rows[contender.price], contender.currency
        costs = [(price.settings.get("strategy", {}).get("n", 1), price.spent(unit))]
        for _ in range(RUNS[unit]):
            n = chains_for(goal.spent(unit), costs)
            row = self._solve(replace(contender, options={**contender.options, "n": n}))
            costs.append((n, row.spent(unit)))
        return row

    def _solve(self, contender: Contender) -> Row:
        engine = self.open_engine()
        try:
            start = time.perf_counter()
            outcomes = run_async(self._outcomes(contender, engine))
            return _row(contender, outcomes, time.perf_counter() - start)
        finally:
            self.end(engine)

    def _task(self, contender: Contender) -> Task:
        if contender.task:
            return load_task(contender.task)
        if self.task is None:
            raise ConfigError(f"{contender.label!r} has no task", hint="name one")
        return self.task

    async def _outcomes(self, contender: Contender, engine: Engine) -> list[Outcome]:
        """The outcome of each problem, in the order of the problems."""
        task = self._task(contender)
        problems = [
            problem if isinstance(problem, Problem) else Problem(problem, number)
            for number, problem in enumerate(self.problems, 1)
        ]
        run = asolve_many(
            task,
            problems,
            engine=engine,
            concurrency=self.concurrency,
            strategy=_strategy(contender, task),
            verifier=_checker(task) if contender.verifier == EXACT else contender.verifier,
            budget=contender.budget or self.budget,
            seed=self.seed,
            sampling=contender.sampling or self.sampling,
        )
        outcomes = []
        async for outcome in run:
            outcomes.append(outcome)
            self.on_result(contender.label, outcome)
        order = {problem.id: number for number, problem in enumerate(problems)}
        return sorted(outcomes, key=lambda outcome: order[outcome.id])


def chains_for(goal: float, costs: Sequence[tuple[int, float]]) -> int:
    """The number of chains, at least 1, that costs ``goal``, on the line through the last two known (chains, cost).

    Zero chains cost nothing, so with one known cost this is a proportion. Equal chains share computed rows, so further chains
    cost less, and the estimate is repeated from its own measured cost.
    """
    (n0, cost0), (n1, cost1) = [(0, 0.0), *costs][-2:]
    return max(1, round(n1 + (goal - cost1) * (n1 - n0) / (cost1 - cost0))) if cost0 < cost1 else max(1, n1)


def _plain(problem: Any) -> Any:
    """A problem without its id."""
    return problem.problem if isinstance(problem, Problem) else problem


def _strategy(contender: Contender, task: Task) -> Strategy:
    """The strategy of a contender. One that is given by name has the settings of the task where the contender has none."""
    from rksc_tot.strategies import STRATEGIES

    if not isinstance(contender.strategy, str):
        return contender.strategy
    return STRATEGIES.make(
        contender.strategy, **{**strategy_settings_of(task, contender.strategy), **contender.options}
    )


def _checker(task: Task) -> Verifier:
    from rksc_tot.verifiers import verifier

    @verifier(name=EXACT)
    def check(problem: Any, path: Path) -> float:
        answer = task.answer(problem, path) if task.is_solution(problem, path) else None
        return 0.0 if answer is None else float(read_verdict(task, problem, answer)[0] is True)

    return check


def _row(contender: Contender, outcomes: Sequence[Outcome], seconds: float) -> Row:
    done = [outcome.result for outcome in outcomes if outcome.result is not None]
    ledgers = [result.ledger for result in done]
    solved = sum(result.correct is True for result in done)
    low, high = wilson(solved, len(outcomes))
    context = sum(ledger.context_tokens for ledger in ledgers)
    computed = sum(ledger.context_computed for ledger in ledgers)
    reasons = Counter(result.why_no_answer for result in done if result.why_no_answer is not None)
    return Row(
        strategy=contender.label,
        solved=solved,
        n=len(outcomes),
        low=low,
        high=high,
        tokens=sum(ledger.tokens_sampled for ledger in ledgers),
        prefill_tokens=sum(ledger.prefill_tokens for ledger in ledgers),
        distinct_tokens=sum(ledger.distinct_tokens for ledger in ledgers),
        prefill_saved=1 - computed / context if context else 0.0,
        verifier_tokens=sum(ledger.verifier_tokens for ledger in ledgers),
        nodes=sum(ledger.nodes for ledger in ledgers),
        seconds=seconds,
        unanswered=reasons.total(),
        reasons=dict(reasons.most_common()),
        settings=dict(done[0].settings) if done else {},
        failures=[
            Failure(problem=text_of(each.problem), error=each.failure) for each in outcomes if each.failure is not None
        ],
    )
