"""Under any policy and any sufficient budget, a search finds the tree that it finds with ample room."""

import asyncio
import math

import pytest

from rksc_tot import asolve, load_engine, solve
from rksc_tot.core.errors import CacheError, ConfigError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.policies.eviction.base import LRU
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama

PUZZLE, OTHER = "4 5 6 10", "1 2 3 4"
SEARCH = {"strategy": BFS(b=4, k=10), "verifier": "lm_value"}
PROMPT = "steps 4 5 6 10\n"


def shape(tree):
    """A tree without floating-point noise."""
    return [(n.parent, n.branch, n.text, n.tokens, n.count, n.pruned, round(n.score or 0, 3)) for n in tree]


@pytest.fixture(scope="module")
def roomy():
    with load_engine() as engine:
        found = solve("game24", PUZZLE, engine=engine, **SEARCH)
        assert (found.ledger.evicted_tokens, found.ledger.recomputed_tokens) == (0, 0)
        return found


def small(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer), layers=2), tokenizer, name="tiny", **options)


def per_token():
    with small() as engine:
        engine.rate(engine.open(PROMPT, Account()), 1.0, 0)
        return engine.bytes_per_token


def ask(handle, tokens=1):
    return GenerateRequest(handle, (1,), Sampling(), tokens)


async def visit(engine, handle):
    await engine.generate([ask(handle)], Account())
    assert handle.segment.resident


@pytest.mark.parametrize("policy", ["rsbcm", "lru", "lfu", "random"])
def test_every_policy_finds_the_same_tree_in_a_third_of_the_kv(roomy, policy):
    budget = roomy.ledger.peak_kv_bytes // 3
    with load_engine(kv_budget=budget, eviction=policy) as engine:
        found = solve("game24", PUZZLE, engine=engine, **SEARCH)
        engine.check_integrity()
        assert found.ledger.evicted_tokens == engine.cache.eviction_log.tokens
    assert shape(found.tree) == shape(roomy.tree)
    assert found.ledger.distinct_tokens == roomy.ledger.distinct_tokens
    assert 0 < found.ledger.recomputed_tokens <= found.ledger.evicted_tokens
    assert found.ledger.peak_kv_bytes <= budget


def test_without_eviction_a_search_fits_or_ends_with_an_error(roomy):
    peak = roomy.ledger.peak_kv_bytes
    with load_engine(kv_budget=peak, eviction="none") as engine:
        assert shape(solve("game24", PUZZLE, engine=engine, **SEARCH).tree) == shape(roomy.tree)
    with load_engine(kv_budget=peak // 3, eviction="none") as engine:
        with pytest.raises(
            CacheError, match="running branches or open handles need - let another policy evict, raise the KV budget"
        ):
            solve("game24", PUZZLE, engine=engine, **SEARCH)
        engine.check_integrity()


def test_two_searches_on_one_tight_engine_do_not_change_each_other(roomy):
    async def both(engine):
        return await asyncio.gather(*(asolve("game24", p, engine=engine, **SEARCH) for p in (PUZZLE, OTHER)))

    with load_engine() as engine:
        wanted = [shape(roomy.tree), shape(solve("game24", OTHER, engine=engine, **SEARCH).tree)]
    budget = roomy.ledger.peak_kv_bytes // 3
    with load_engine(kv_budget=budget) as engine:
        found = asyncio.run(both(engine))
        engine.check_integrity()
        assert sum(result.ledger.evicted_tokens for result in found) == engine.cache.eviction_log.tokens > 0
    assert [shape(result.tree) for result in found] == wanted
    assert max(result.ledger.peak_kv_bytes for result in found) <= budget


async def test_the_path_with_the_lowest_rating_is_evicted():
    with small(kv_budget=14 * per_token()) as engine:
        root = engine.open(PROMPT, Account())
        good, bad = engine.extend(root, "10 -"), engine.extend(root, "5 *")
        for handle, score in ((bad, 0.1), (good, 5.0)):
            await visit(engine, handle)
            engine.rate(handle, score, 1)
        await visit(engine, bad)  # so that only its score speaks against it
        room = engine.cache.residency.pool.available
        other = engine.extend(root, " 1 2 3 4 5 6 7 8 9"[: 2 * (room + 1)])
        await visit(engine, other)
        assert (root.segment.resident, good.segment.resident, bad.segment.resident) == (True, True, False)


async def test_the_prompt_of_an_idle_search_is_evicted_last_and_computed_again():
    with small(kv_budget=12 * per_token()) as engine:
        first = engine.open(PROMPT, Account())
        thought = engine.extend(first, "10 -")
        await visit(engine, thought)
        second = engine.open("solve 1 2 3 4\n", Account())
        await visit(engine, second)
        assert (first.segment.resident, thought.segment.resident) == (True, False)
        long = engine.extend(second, "1 + 2")
        await visit(engine, long)
        assert not first.segment.resident
        await visit(engine, first)
        engine.release(first)
        engine.check_integrity()


@pytest.mark.parametrize(("score", "depth"), [(math.nan, 1), (math.inf, 1), (-math.inf, 0), (1.0, -1)])
def test_an_invalid_rating_is_refused(score, depth):
    with small() as engine:
        root = engine.open(PROMPT, Account())
        with pytest.raises(ConfigError, match=f"a path of {depth} thoughts is rated {score}"):
            engine.rate(root, score, depth)


def test_a_budget_below_the_prompt_is_refused_with_the_bytes():
    size = per_token()
    with small(kv_budget=5 * size) as engine:
        with pytest.raises(CacheError, match=f"6 tokens take {6 * size} bytes of KV, the budget holds {5 * size}"):
            engine.open(PROMPT, Account())
        assert list(engine.cache.segments()) == []
    with small(kv_budget=6 * size) as engine:
        assert engine.open(PROMPT, Account()).length == 6


@pytest.mark.parametrize(
    ("option", "value"), [("kv_budget", "64 potatoes"), ("kv_budget", 0), ("kv_budget", "-1MiB"), ("eviction", "fifo")]
)
def test_a_wrong_setting_is_named_before_a_model_is_loaded(option, value):
    with pytest.raises(ConfigError) as raised:
        load_engine("no/such model", **{option: value})
    assert repr(value) in str(raised.value)


def test_a_budget_may_be_a_text_and_a_policy_an_object():
    with small(kv_budget="1MiB", eviction=LRU()) as engine:
        assert engine.cache.residency.pool.limit == (1 << 20) // engine.bytes_per_token
        assert engine.cache.eviction_queue.policy == LRU()
