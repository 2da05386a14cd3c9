"""No budget, of one search or of a whole run, is exceeded by one, however many searches share it."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.api.solve import solve
from rksc_tot.api.solve_many import solve_many
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.ledger import Ledger
from rksc_tot.core.task import Question, function_task
from rksc_tot.engine import load_engine
from rksc_tot.engine.base import Account
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.engine.mock.kv import MockKV
from rksc_tot.search.limits import Limits
from rksc_tot.strategies import BFS, DFS, Beam, BestOfN

STRATEGIES = [BFS(b=2, k=4), DFS(k=3), Beam(b=2), BestOfN(n=5)]
SPENT = {"tokens": "tokens_sampled", "nodes": "nodes", "verifier_calls": "verifier_calls"}
AT_ONCE = [1, 4, 32]


def make_task(**options):
    return function_task(
        prompt=lambda problem: f"go {problem}\n",
        is_solution=lambda problem, path: len(path) == 3,
        question=lambda problem, path: Question("good?", {"yes": 1, "no": 0}),
        max_thoughts=3,
        **options,
    )


def make_engine():
    return MockEngine(
        lambda text, rng: "ab"[rng.randrange(2)] * rng.randrange(1, 6) + "\n",
        lambda text, question, labels: {"yes": random.Random(text).random(), "no": 0.3},
    )


def budgets(**most):
    """Budgets with some of the limits, each small enough to matter."""
    return st.builds(Budget, **{name: st.none() | st.integers(1, size) for name, size in most.items()})


@given(
    st.sampled_from(STRATEGIES),
    budgets(tokens=150, nodes=20, verifier_calls=20, kv_bytes=80),
    budgets(tokens=900, nodes=90, verifier_calls=90),
    st.sampled_from(AT_ONCE),
)
def test_no_budget_is_exceeded_by_one(strategy, budget, run_budget, at_once):
    engine = make_engine()
    options = {"strategy": strategy, "budget": budget, "run_budget": run_budget, "concurrency": at_once}
    run = solve_many(make_task(), range(12), engine=engine, **options)
    totals = dict.fromkeys(SPENT, 0)
    for outcome in run:
        if outcome.failure:
            assert "bytes of KV" in outcome.failure  # the prompt alone does not fit
            continue
        ledger = outcome.result.ledger
        assert ledger.nodes == len(outcome.result.tree) - 1
        for limit, counter in SPENT.items():
            assert getattr(ledger, counter) <= (getattr(budget, limit) or 1e9)
            totals[limit] += getattr(ledger, counter)
        if outcome.verdict == "cut":
            assert outcome.result.stopped.startswith("the run's budget of ")
    for limit, counter in SPENT.items():
        assert totals[limit] == getattr(run.tally.spent, counter) <= (getattr(run_budget, limit) or 1e9)
    assert run.tally.started == run.tally.finished
    assert (run.tally.not_started == 0) or run.tally.stopped.startswith("the run's budget of ")
    assert engine.handles == 0


@given(st.sampled_from(STRATEGIES), st.integers(8, 100), st.sampled_from(["sample", "propose"]), st.booleans())
def test_no_search_exceeds_its_kv_budget(strategy, most, mode, keep_stop):
    held, store = [], MockKV.store

    def store_and_note(self, text, account, needed=()):
        computed = store(self, text, account, needed)
        held.append(self.held.size)
        return computed

    MockKV.store = store_and_note
    try:
        task = make_task(mode=mode, keep_stop=keep_stop)
        run = solve_many(task, range(6), engine=make_engine(), strategy=strategy, budget=Budget(kv_bytes=most))
        stopped = {outcome.result.stopped for outcome in run}
    finally:
        MockKV.store = store
    assert max(held) <= most
    assert stopped <= {"finished", f"the budget of {most} KV bytes is used up"}


@pytest.fixture(scope="module")
def embedded():
    with load_engine() as engine:
        yield engine


@pytest.mark.parametrize("at_once", AT_ONCE)
@pytest.mark.parametrize("limit", SPENT)
def test_no_budget_of_a_run_is_exceeded_by_one_on_the_embedded_model(embedded, limit, at_once):
    most = {"tokens": 301, "nodes": 21, "verifier_calls": 17}[limit]
    puzzles = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]
    options = {"run_budget": Budget(**{limit: most}), "concurrency": at_once, "strategy": BFS(b=3, k=6)}
    embedded.clear()
    run = solve_many("game24", puzzles, engine=embedded, **options)
    results = [outcome.result for outcome in run]
    spent = sum(getattr(result.ledger, SPENT[limit]) for result in results)
    assert spent == most or (limit == "nodes" and spent < most)  # not every draw that could become a node does
    assert run.tally.stopped == f"the run's budget of {most} {limit.replace('_', ' ')} is used up"
    assert any(result.stopped == run.tally.stopped for result in results)
    assert run.tally.not_started == len(puzzles) - len(results)


def test_searches_not_started_are_counted_and_are_not_failures():
    run = solve_many(make_task(), range(100), engine=make_engine(), run_budget=Budget(tokens=50), concurrency=2)
    outcomes = list(run)
    assert not any(outcome.failure for outcome in outcomes)
    assert run.tally.not_started == 100 - len(outcomes) > 90
    assert run.tally.stopped == "the run's budget of 50 tokens is used up"


def test_a_budget_used_up_by_the_last_search_does_not_stop_the_run():
    task = function_task(prompt=str, is_solution=lambda problem, path: len(path) == 1, max_thoughts=1)
    engine = MockEngine(lambda text, rng: "x\n")
    options = {"engine": engine, "strategy": BFS(b=1, k=1), "run_budget": Budget(tokens=6), "concurrency": 1}
    run = solve_many(task, ["abc"] * 3, **options)
    assert [outcome.result.stopped for outcome in run] == ["finished"] * 3
    assert (run.tally.spent.tokens_sampled, run.tally.stopped) == (6, "finished")
    run = solve_many(task, ["a"] * 4, **options)
    assert len(list(run)) == 3
    assert (run.tally.stopped, run.tally.not_started) == ("the run's budget of 6 tokens is used up", 1)


def test_an_endless_run_ends_when_its_seconds_are_over():
    engine = make_engine()
    run = solve_many(make_task(), itertools.count(), engine=engine, run_budget=Budget(seconds=0.2))
    for outcome in run:
        assert outcome.failure is None
    assert run.tally.stopped == "the run's budget of 0.2 seconds is used up"
    assert (run.tally.not_started, engine.handles) == (None, 0)


def test_a_search_without_room_for_more_kv_returns_its_best_so_far():
    result = solve(make_task(), 1, engine=make_engine(), strategy=BFS(b=5, k=9), budget=Budget(kv_bytes=40))
    assert result.stopped == "the budget of 40 KV bytes is used up"
    assert len(result.tree) > 1
    assert result.settings["budget"] == {"kv_bytes": 40}


@given(st.integers(0, 50), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9))
def test_an_account_within_another_never_takes_more_than_either_has(wanted, own, shared, rest):
    run = Account(tokens_left=shared, run=None if rest is None else Account(tokens_left=rest))
    account = Account(tokens_left=own, run=run)
    granted = account.take(wanted)
    assert granted == min(wanted, *(left for left in (own, shared, rest) if left is not None), wanted)
    assert account.ledger.tokens_sampled == run.ledger.tokens_sampled == granted


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "reserve", "spend", "release"]), st.integers(0, 9), st.booleans()),
        max_size=12,
    ),
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 20),
)
def test_a_reserve_is_kept_from_all_others_and_no_limit_is_exceeded(steps, own, shared):
    run = Account(tokens_left=shared)
    accounts = Account(tokens_left=own, run=run), Account(tokens_left=own, run=run)
    for step, tokens, first in steps:
        account = accounts[0 if first else 1]
        reserved = account.reserved, accounts[1 if first else 0].reserved
        if step == "take":
            granted = account.take(tokens)
            assert account.reserved == reserved[0] - (granted if account.spends_reserve else 0)
        elif step == "reserve":
            account.reserve(tokens)
            assert reserved[0] <= account.reserved <= reserved[0] + tokens
        elif step == "spend":
            account.spends_reserve = True
            assert account.available == account.reserved
        else:
            account.release_reserve()
            assert (account.reserved, account.spends_reserve) == (0, False)
        assert accounts[1 if first else 0].reserved == reserved[1]
        for each in accounts:
            assert own is None or each.ledger.tokens_sampled + each.reserved + each.tokens_left == own
        spent = sum(each.ledger.tokens_sampled for each in accounts)
        assert run.ledger.tokens_sampled == spent
        assert shared is None or spent + sum(each.reserved for each in accounts) + run.tokens_left == shared
        assert min(run.tokens_left or 0, *(each.tokens_left or 0 for each in accounts)) >= 0


def test_the_reason_names_the_tighter_budget():
    for own, shared, named in ((3, 5, "the budget of 3 nodes"), (5, 3, "the run's budget of 3 nodes")):
        run = Limits(Budget(nodes=shared), Ledger(), name="the run's budget")
        limits = Limits(Budget(nodes=own), Ledger(), run=run)
        assert limits.admit_thoughts([("a", 9)]) == [("a", 3)]
        assert limits.stopped == f"{named} is used up"
        assert run.stopped == (limits.stopped if "run" in named else None)


def test_a_node_is_admitted_only_while_both_budgets_have_room():
    run = Limits(Budget(nodes=3), Ledger())
    one, two = Limits(Budget(nodes=2), Ledger(), run=run), Limits(Budget(), Ledger(), run=run)
    assert [each.admit_node() for each in (one, one, one, two, two)] == [True, True, False, True, False]
    assert (one.ledger.nodes, two.ledger.nodes, run.ledger.nodes) == (2, 1, 3)


@pytest.mark.parametrize(("given", "size"), [("64MiB", 64 << 20), (1000, 1000), ("1.5 kB", 1500), (None, None)])
def test_kv_bytes_accept_sizes_with_units(given, size):
    assert Budget(kv_bytes=given).kv_bytes == size


@pytest.mark.parametrize("wrong", ["64 potatoes", 0, -1, True, 1.5, ""])
def test_invalid_kv_bytes_are_refused(wrong):
    with pytest.raises(ConfigError, match="no size in bytes"):
        Budget(kv_bytes=wrong)
