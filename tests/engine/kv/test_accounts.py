"""What is resident for one search stays within its budget, token by token; and so does what is resident for all of them."""

import asyncio

import pytest
import torch

from rksc_tot import Budget, asolve, load_engine, solve, solve_many
from rksc_tot.core.errors import CacheError, EngineError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.strategies import BFS, DFS, Beam
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama
from tests.engine.requests import LABELS, PROMPT, ask, texts

SEARCH = {"strategy": BFS(b=2, k=6), "verifier": "lm_value"}
PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]
PROMPT_TOKENS = 6


def shape(tree):
    return [(n.parent, n.branch, n.text, n.tokens, n.count, n.pruned, round(n.score or 0, 3)) for n in tree]


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, **options)


def count(engine):
    """Tokens found resident on each account, by its id."""
    found = {}
    for segment in engine.cache.segments():
        if segment.kv.payer is not None:
            found[id(segment.kv.payer)] = found.get(id(segment.kv.payer), 0) + len(segment.kv.slots)
    return found


def watch(engine, monkeypatch):
    """The most tokens that were resident on each account during a pass from now on; a wrong count is an error at once."""
    seen = {}
    run = engine.forward.run

    def watched(*arguments):
        payers = {id(s.kv.payer): s.kv.payer for s in engine.cache.segments() if s.kv.payer is not None}
        for key, held in count(engine).items():
            assert payers[key].kv_rows == held
            assert held * engine.bytes_per_token <= payers[key].kv_bytes
            seen[key] = max(seen.get(key, 0), held)
        return run(*arguments)

    monkeypatch.setattr(engine.forward, "run", watched)
    return seen


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


# -- one search ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [7, 8, 12, 20, 29, 40, 80])
def test_searches_together_stay_within_their_budgets_and_end_with_their_best_and_the_reason(
    embedded, monkeypatch, tokens
):
    seen = watch(embedded, monkeypatch)
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
def test_whatever_the_strategy_a_search_without_room_ends_in_order(embedded, monkeypatch, strategy):
    seen = watch(embedded, monkeypatch)
    for tokens in (7, 15, 33):
        size = tokens * embedded.bytes_per_token
        result = solve("game24", PUZZLES[0], engine=embedded, strategy=strategy, budget=Budget(kv_bytes=size))
        assert result.stopped in ("finished", f"the budget of {size} KV bytes is used up")
        embedded.clear()
        assert max(seen.values()) <= tokens
        seen.clear()


def test_a_budget_that_only_makes_it_compute_again_changes_nothing_else(embedded, roomy, monkeypatch):
    seen = watch(embedded, monkeypatch)
    for puzzle, wanted in roomy.items():
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


def test_a_search_within_a_budget_leaves_the_kv_of_others_where_it_is(embedded):
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


def test_a_prompt_that_does_not_fit_is_refused_with_what_it_takes(embedded):
    size = embedded.bytes_per_token
    with pytest.raises(CacheError, match=rf"6 tokens take {6 * size} bytes of KV, the search may hold {6 * size - 1} "):
        solve("game24", PUZZLES[0], engine=embedded, budget=Budget(kv_bytes=6 * size - 1))
    fits = solve("game24", PUZZLES[0], engine=embedded, budget=Budget(kv_bytes=6 * size))
    assert fits.stopped == f"the budget of {6 * size} KV bytes is used up"


# -- one account in the engine -------------------------------------------------------------------------------------------


async def test_jobs_that_do_not_fit_together_come_one_after_the_other(monkeypatch):
    with make() as engine:
        root = engine.open(PROMPT, Account())
        asked = [ask(root, str(n), k=2, max_tokens=8, stop=()) for n in range(4)]
        wanted = [texts(found) for found in await engine.generate(asked, Account())]
    with make() as engine:
        seen = watch(engine, monkeypatch)
        account = Account(kv_bytes=24 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        asked = [ask(root, str(n), k=2, max_tokens=8, stop=()) for n in range(4)]
        assert [texts(found) for found in await engine.generate(asked, account)] == wanted
        assert not account.kv_short
        assert 20 < seen[id(account)] <= 24
        assert account.ledger.evicted_tokens > 0


async def test_a_job_that_fits_is_not_ended_for_one_that_does_not():
    with make() as engine:
        account = Account(kv_bytes=20 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        long = engine.extend(root, " 4" * 30)
        first, fits, too_long = await asyncio.gather(
            engine.generate([ask(root, "a", k=1, max_tokens=5, stop=())], account),
            engine.generate([ask(root, "b", k=1, max_tokens=5, stop=())], account),
            engine.generate([ask(long, "c", k=1, max_tokens=5, stop=())], account),
        )
        assert [found[0][0].finish for found in (first, fits, too_long)] == ["length", "length", "budget"]
        assert account.kv_short


async def test_a_job_that_waits_for_rows_of_others_is_not_ended_for_one_that_does_not_fit():
    with make() as engine:
        wide, narrow = Account(), Account(kv_bytes=20 * engine.bytes_per_token)
        root, other = engine.open(PROMPT, wide), engine.open("solve 1 2 3 4\n", narrow)
        found = await asyncio.gather(
            engine.generate([ask(root, "a", k=1, max_tokens=5, stop=())], wide),
            engine.generate([ask(root, "b", k=1, max_tokens=5, stop=())], narrow),
            engine.generate([ask(engine.extend(other, " 4" * 30), "c", k=1, max_tokens=5, stop=())], narrow),
        )
        assert [completions[0][0].finish for completions in found] == ["length", "length", "budget"]


async def test_an_account_without_room_ends_no_request_of_others():
    with make() as engine:
        narrow, wide = Account(kv_bytes=8 * engine.bytes_per_token), Account()
        one, two = engine.open(PROMPT, narrow), engine.open("solve 1 2 3 4\n", wide)
        short, whole = await asyncio.gather(
            engine.generate([ask(one, "a", k=4, max_tokens=9, stop=())], narrow),
            engine.generate([ask(two, "b", k=4, max_tokens=9, stop=())], wide),
        )
        assert {c.finish for c in short[0]} == {"budget"}
        assert {c.finish for c in whole[0]} == {"length"}
        assert sorted(b for c in short[0] for b in c.branches) == list(range(4))
        assert (narrow.kv_short, wide.kv_short) == (True, False)


@pytest.mark.parametrize("route", ["plain", "watched"])
async def test_a_question_that_does_not_fit_goes_unanswered_and_one_that_does_leaves_nothing(route):
    with make() as engine:
        account = Account(kv_bytes=12 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        (found,) = await engine.label([LabelRequest(root, "try so", LABELS, trace=route == "watched")], account)
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert account.kv_rows == PROMPT_TOKENS
        assert not account.kv_short
        long = LabelRequest(root, "try" + " 1" * 12 + " so", LABELS, trace=route == "watched")
        assert await engine.label([long], account) == [None]
        assert account.kv_short
        assert account.kv_rows <= PROMPT_TOKENS
        engine.check_integrity()


@pytest.mark.parametrize("rows", [2, 3, 5, 7, 64])
@pytest.mark.parametrize("tight", ["account", "engine"])
async def test_those_who_want_the_same_room_do_not_take_it_from_each_other_for_ever(monkeypatch, tight, rows):
    room = 40
    with make(max_batch_tokens=rows, **({"kv_budget": room * token_bytes()} if tight == "engine" else {})) as engine:
        account = Account(kv_bytes=room * engine.bytes_per_token if tight == "account" else None)
        monkeypatch.setattr(engine.forward, "run", at_most(600, engine.forward.run))
        roots = [engine.open(prompt, account) for prompt in (PROMPT, "solve 1 2 3 4\n")]
        seen = [
            await asyncio.gather(
                *(engine.label([LabelRequest(root, "try" + " 1" * long + " so", LABELS)], account) for root in roots),
                *(engine.generate([ask(root, "a", k=k, max_tokens=20, stop=())], account) for root in roots),
                return_exceptions=True,
            )
            for long, k in ((30, 1), (50, 2), (70, 4))
        ]
        fell_short = [each for found in seen for each in found if isinstance(each, Exception)]
        assert all(isinstance(error, CacheError) for error in fell_short)
        assert not fell_short or tight == "engine"
        engine.check_integrity()
        assert [segment for segment in engine.cache.segments() if segment.pins] == []


def token_bytes():
    with make() as engine:
        return engine.bytes_per_token


def at_most(passes, run):
    """A run that refuses to go on for ever."""
    left = iter(range(passes))

    def watched(*arguments):
        assert next(left, None) is not None, "no end of it"
        return run(*arguments)

    return watched


async def test_a_pass_that_fails_charges_nobody(monkeypatch):
    with make() as engine:
        account = Account(kv_bytes=30 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        with monkeypatch.context() as patch:
            patch.setattr(engine.forward.model, "forward", lambda **_: 1 / 0)
            with pytest.raises(EngineError, match="division by zero"):
                await engine.generate([ask(root)], account)
            assert account.kv_rows == 0
        with monkeypatch.context() as patch:
            run, calls = engine.forward.run, iter(range(99))

            def scarce(*arguments):
                if next(calls) < 2:
                    raise torch.OutOfMemoryError("no room")
                return run(*arguments)

            patch.setattr(engine.forward, "run", scarce)
            await engine.generate([ask(root, k=2, max_tokens=2)], account)
        engine.check_integrity()
        assert account.kv_rows == sum(count(engine).values()) > PROMPT_TOKENS


@pytest.mark.parametrize("tokens", [7, 16, 24, 40])
@pytest.mark.parametrize("threshold", [None, 1e9])
async def test_reused_kv_is_charged_and_limited_like_any_other(monkeypatch, tokens, threshold):
    with make() as engine:
        account = Account(kv_bytes=tokens * engine.bytes_per_token)
        seen = watch(engine, monkeypatch)
        reference = engine.open("solve 1 2 3 4\n", account)
        rule = PromptReuse(threshold=threshold, least=2, audit=1)
        handle, verdict = await engine.open_variant("steps 1 2 3 4\n", reference, rule, account)
        engine.check_integrity()
        assert seen[id(account)] <= tokens
        assert account.kv_rows == sum(count(engine).values()) <= tokens
        assert verdict.kept == (threshold is None and tokens >= 16)
        if verdict.kept:
            assert all(segment.kv.payer is account for segment in handle.segment.lineage())
        elif tokens < 12:
            assert "more tokens do not fit the" in verdict.why
        engine.release(handle)
        engine.release(reference)
        engine.clear()
        assert account.kv_rows == 0


async def test_what_is_given_back_is_no_longer_charged():
    with make() as engine:
        account = Account(kv_bytes=100 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        (found,) = await engine.generate([ask(root, k=4)], account)
        assert account.kv_rows == sum(count(engine).values()) > PROMPT_TOKENS
        for handle in (root, *(completion.handle for completion in found)):
            engine.release(handle)
        engine.clear()
        assert account.kv_rows == 0


# -- all of them together ------------------------------------------------------------------------------------------------


async def test_a_prompt_larger_than_the_engine_is_refused_at_once_and_with_the_number():
    with make() as roomy:
        size = roomy.bytes_per_token
    with make(kv_budget=(PROMPT_TOKENS - 1) * size) as engine:
        with pytest.raises(CacheError, match=f"take {6 * size} bytes of KV, the budget holds {5 * size}"):
            engine.open(PROMPT, Account())
        assert engine.usage == (0, 0, 2048, 0, 5 * size, 0)


async def test_a_path_that_never_fits_fails_alone_even_where_its_turn_comes_first():
    with make(kv_budget=24 * make_size()) as engine:
        accounts = [Account() for _ in range(3)]
        one, two, other = (
            engine.open(f"{word} 4 5 6 10\n", a) for word, a in zip(("steps", "solve", "try"), accounts, strict=True)
        )
        long = engine.extend(other, " 4" * 40)  # the account for which nothing has been computed
        requests = [ask(one, "a", k=2, max_tokens=8, stop=()), ask(two, "b", k=2, max_tokens=8, stop=()), ask(long)]
        work = (engine.generate([request], account) for request, account in zip(requests, accounts, strict=True))
        *good, bad = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(bad, CacheError)
        assert [sorted(b for c in found[0] for b in c.branches) for found in good] == [[0, 1], [0, 1]]


def make_size():
    with make() as engine:
        return engine.bytes_per_token


def test_more_searches_than_there_is_room_for_evict_and_wait_and_find_the_same(roomy):
    needed = max(result.ledger.distinct_tokens for result in roomy.values())
    with load_engine() as engine:
        size = engine.bytes_per_token
    with load_engine(kv_budget=needed // 2 * size) as engine:
        run = solve_many("game24", PUZZLES * 8, engine=engine, concurrency=32, **SEARCH)
        for outcome in run:
            assert outcome.failure is None
            assert outcome.result.ledger.peak_kv_bytes <= needed // 2 * size
            assert shape(outcome.result.tree) == shape(roomy[outcome.problem].tree)
        assert engine.cache.residency.evicted_tokens > 0
        engine.check_integrity()
        engine.clear()
        assert list(engine.cache.segments()) == []
