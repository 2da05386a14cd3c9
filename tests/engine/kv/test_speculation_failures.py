"""Cancelled, closed or failing work leaves nothing behind, and drafts are booked on their own search."""

import asyncio
import logging
from typing import ClassVar

import pytest

from rksc_tot.core.errors import EngineError
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.generation.draft import DraftJob
from rksc_tot.policies.compression.base import PathPolicy
from tests.engine.kv.lossless import NONSENSE, ask, grow, held, run, written


class Faulty(PathPolicy):
    """A policy that always fails."""

    name: ClassVar[str] = "faulty"

    def select(self, view, budget, rng):
        raise ZeroDivisionError("one\n  by nought")


async def drafting(engine):
    """Wait until a draft is running."""
    while not any(isinstance(job, DraftJob) for job in list(engine.scheduler.jobs)):
        await asyncio.sleep(0)


async def test_a_cancelled_generation_leaves_nothing_behind(make, wanted):
    with make(compress=NONSENSE, lossless=True) as engine:
        root = engine.open("say yes", Account())
        task = asyncio.create_task(engine.generate([ask(root)], Account()))
        beside = asyncio.create_task(engine.generate([ask(root, "beside", k=2)], Account()))
        await drafting(engine)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        beside.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beside
        engine.engine_thread.empty_inbox()
        assert engine.scheduler.jobs == []
        (reply,) = await engine.generate([ask(root)], Account())
        assert written(reply) == wanted[0][0]
        held(engine, [root, *(completion.handle for completion in reply)])


async def test_closing_an_engine_ends_drafts_and_generations(make):
    engine = make(compress=NONSENSE, lossless=True)
    root = engine.open("say yes", Account())
    account = Account()
    task = asyncio.create_task(engine.generate([ask(root)], account))
    await drafting(engine)
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        await task
    engine.engine_thread.empty_inbox()
    assert engine.scheduler.jobs == []
    assert [s for s in engine.cache.segments() if s.pins] == []
    engine.check_integrity()
    verified = account.ledger.verified
    assert verified.drafted == verified.accepted + verified.rejected


def test_a_failing_policy_is_logged_once_and_stops_drafting(make, wanted, caplog):
    account = Account()
    policy = Faulty(budget=1, recent=1, pin_prompt=False)
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        found = run(make(compress=policy, lossless=True), lambda engine: grow(engine, account, "s"))
    assert found == wanted
    (told,) = [record.message for record in caplog.records if "faulty" in record.message]
    assert told.startswith(
        "speculative decoding is off from now on: compression policy 'faulty': its select, with 2 tokens and a budget of 1, "
    )
    assert told.endswith("raised ZeroDivisionError: one by nought - correct the policy")
    assert account.ledger.verified.drafted == 0


async def test_drafts_are_booked_on_their_own_search(make):
    with make(compress=NONSENSE, lossless=True) as engine:
        one, two = Account(), Account()
        long, short = (engine.open(text, Account()) for text in ("say yes", "no"))
        await asyncio.gather(engine.generate([ask(long)], one), engine.generate([ask(short, max_tokens=1)], two))
        assert one.ledger.compression.acted > 0
        assert one.ledger.verified.rows > 0
        assert two.ledger.compression.acted == two.ledger.verified.rows == 0
