"""KV that is resident on one account of the engine stays within its limit, token by token."""

import asyncio

import pytest
import torch

from rksc_tot.core.errors import CacheError, EngineError
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.policies.asks import PromptReuse
from tests.engine.kv.accounts import PROMPT_TOKENS, count, make, record_residents, token_bytes
from tests.engine.requests import LABELS, PROMPT, ask, texts


async def test_jobs_that_do_not_fit_together_run_one_after_the_other(monkeypatch):
    with make() as engine:
        root = engine.open(PROMPT, Account())
        asked = [ask(root, str(n), k=2, max_tokens=8, stop=()) for n in range(4)]
        wanted = [texts(found) for found in await engine.generate(asked, Account())]
    with make() as engine:
        seen = record_residents(engine, monkeypatch)
        account = Account(kv_bytes=24 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        asked = [ask(root, str(n), k=2, max_tokens=8, stop=()) for n in range(4)]
        assert [texts(found) for found in await engine.generate(asked, account)] == wanted
        assert not account.kv_short
        assert 20 < seen[id(account)] <= 24
        assert account.ledger.evicted_tokens > 0


async def test_a_job_that_fits_is_not_ended_by_one_that_does_not():
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


async def test_a_job_that_waits_for_rows_of_others_is_not_ended_by_one_that_does_not_fit():
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


@pytest.mark.parametrize("route", ["plain", "between layers"])
async def test_a_question_without_room_goes_unanswered_and_questions_leave_no_kv(route):
    with make() as engine:
        account = Account(kv_bytes=12 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        (found,) = await engine.label([LabelRequest(root, "try so", LABELS, trace=route == "between layers")], account)
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert account.kv_rows == PROMPT_TOKENS
        assert not account.kv_short
        long = LabelRequest(root, "try" + " 1" * 12 + " so", LABELS, trace=route == "between layers")
        assert await engine.label([long], account) == [None]
        assert account.kv_short
        assert account.kv_rows <= PROMPT_TOKENS
        engine.check_integrity()


@pytest.mark.parametrize("rows", [3, 64, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (2, 5, 7))])
@pytest.mark.parametrize("tight", ["account", "engine"])
async def test_jobs_that_need_the_same_room_do_not_evict_each_other_for_ever(monkeypatch, tight, rows):
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


def at_most(passes, run):
    """A run with a limit on passes."""
    left = iter(range(passes))

    def limited_run(*arguments):
        assert next(left, None) is not None, "no end of it"
        return run(*arguments)

    return limited_run


async def test_a_failed_pass_charges_no_account(monkeypatch):
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
        seen = record_residents(engine, monkeypatch)
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


async def test_released_kv_is_no_longer_charged():
    with make() as engine:
        account = Account(kv_bytes=100 * engine.bytes_per_token)
        root = engine.open(PROMPT, account)
        (found,) = await engine.generate([ask(root, k=4)], account)
        assert account.kv_rows == sum(count(engine).values()) > PROMPT_TOKENS
        for handle in (root, *(completion.handle for completion in found)):
            engine.release(handle)
        engine.clear()
        assert account.kv_rows == 0


async def test_a_prompt_larger_than_the_engine_is_refused_at_once_and_with_the_number():
    with make() as roomy:
        size = roomy.bytes_per_token
    with make(kv_budget=(PROMPT_TOKENS - 1) * size) as engine:
        with pytest.raises(CacheError, match=f"take {6 * size} bytes of KV, the budget holds {5 * size}"):
            engine.open(PROMPT, Account())
        assert engine.usage == (0, 0, 2048, 0, 5 * size, 0)


async def test_a_path_that_never_fits_fails_alone_even_if_it_is_first():
    with make(kv_budget=24 * token_bytes()) as engine:
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
