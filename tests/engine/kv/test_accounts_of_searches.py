"""KV that is resident for a search stays within its budget, and a search without room ends with its best."""

import asyncio

import pytest

from rksc_tot import Budget, asolve, load_engine, solve, solve_many
from rksc_tot.core.errors import CacheError
from rksc_tot.engine.base import Account
from rksc_tot.strategies import BFS, DFS, Beam
from tests.engine.kv.accounts import PUZZLES, SEARCH, record_residents, shape
from tests.engine.requests import ask


@pytest.fixture(scope="module")
def loaded():
    with load_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def roomy(loaded):
    found = {}
    for puzzle in PUZZLES:
        loaded.clear()
        found[puzzle] = solve("game24", puzzle, engine=loaded, **SEARCH)
    return found


@pytest.fixture
def embedded(loaded):
    """The built-in model, with nothing in its cache."""
    loaded.clear()
    yield loaded
    loaded.clear()
    loaded.check_integrity()
    assert list(loaded.cache.segments()) == []


@pytest.mark.parametrize("tokens", [7, 8, 12, 20, 29, 40, 80])
def test_concurrent_searches_stay_within_their_budgets_and_end_with_their_best(embedded, monkeypatch, tokens):
    seen = record_residents(embedded, monkeypatch)
    size = tokens * embedded.bytes_per_token
    outcomes = list(solve_many("game24", PUZZLES, engine=embedded, budget=Budget(kv_bytes=size), **SEARCH))
    assert [outcome.failure for outcome in outcomes] == [None] * len(PUZZLES)
    for outcome in outcomes:
        result = outcome.result
        assert result.stopped in ("finished", f"the budget of {size} KV bytes is used up")
        assert (result.stopped == "finished") == (tokens >= 80)
        assert result.tree[result.best] is not None
    assert max(seen.values()) <= tokens
    assert len(seen) >= len(PUZZLES) - 1


@pytest.mark.parametrize("strategy", [BFS(b=3, k=5), DFS(k=4), Beam(b=2, k=4)])
def test_a_search_without_room_ends_without_error_under_any_strategy(embedded, monkeypatch, strategy):
    seen = record_residents(embedded, monkeypatch)
    for tokens in (7, 15, 33):
        size = tokens * embedded.bytes_per_token
        result = solve("game24", PUZZLES[0], engine=embedded, strategy=strategy, budget=Budget(kv_bytes=size))
        assert result.stopped in ("finished", f"the budget of {size} KV bytes is used up")
        embedded.clear()
        assert max(seen.values()) <= tokens
        seen.clear()


def test_a_tight_budget_only_causes_recomputation(embedded, roomy, monkeypatch):
    seen = record_residents(embedded, monkeypatch)
    for puzzle in PUZZLES[:2]:
        wanted = roomy[puzzle]
        embedded.clear()
        tokens = wanted.ledger.distinct_tokens // 2
        budget = Budget(kv_bytes=tokens * embedded.bytes_per_token)
        found = solve("game24", puzzle, engine=embedded, budget=budget, **SEARCH)
        assert found.stopped == "finished"
        assert shape(found.tree) == shape(wanted.tree)
        assert found.ledger.distinct_tokens == wanted.ledger.distinct_tokens
        assert 0 < found.ledger.recomputed_tokens <= found.ledger.evicted_tokens
        assert max(seen.values()) == tokens
        seen.clear()


def test_a_search_within_a_budget_does_not_evict_kv_of_others(embedded):
    async def run():
        handle = embedded.open("solve 1 2 3 4\n", Account())
        account = Account(kv_bytes=1000 * embedded.bytes_per_token)
        paid = embedded.open("solve 2 5 8 11\n", account)
        for each, payer in ((handle, Account()), (paid, account)):
            (found,) = await embedded.generate([ask(each, k=4)], payer)
            for completion in found:
                embedded.release(completion.handle)
        embedded.release(paid)
        before = {id(s): list(s.kv.slots) for s in embedded.cache.segments() if s.kv.slots}
        result = await asolve(
            "game24", PUZZLES[0], engine=embedded, budget=Budget(kv_bytes=60 * embedded.bytes_per_token), **SEARCH
        )
        assert result.ledger.evicted_tokens > 0
        after = {id(s): list(s.kv.slots) for s in embedded.cache.segments()}
        assert before.items() <= after.items()
        embedded.release(handle)

    asyncio.run(run())


def test_a_prompt_that_does_not_fit_is_refused_with_the_bytes_it_takes(embedded):
    size = embedded.bytes_per_token
    with pytest.raises(CacheError, match=rf"6 tokens take {6 * size} bytes of KV, the search may hold {6 * size - 1} "):
        solve("game24", PUZZLES[0], engine=embedded, budget=Budget(kv_bytes=6 * size - 1))
    fits = solve("game24", PUZZLES[0], engine=embedded, budget=Budget(kv_bytes=6 * size))
    assert fits.stopped == f"the budget of {6 * size} KV bytes is used up"


def test_more_searches_than_fit_evict_and_wait_and_find_the_same_trees(roomy):
    needed = max(result.ledger.distinct_tokens for result in roomy.values())
    with load_engine() as engine:
        size = engine.bytes_per_token
    with load_engine(kv_budget=needed // 2 * size) as engine:
        run = solve_many("game24", PUZZLES * 2, engine=engine, concurrency=8, **SEARCH)
        for outcome in run:
            assert outcome.failure is None
            assert outcome.result.ledger.peak_kv_bytes <= needed // 2 * size
            assert shape(outcome.result.tree) == shape(roomy[outcome.problem].tree)
        assert engine.cache.eviction_log.tokens > 0
        engine.check_integrity()
        engine.clear()
        assert list(engine.cache.segments()) == []
