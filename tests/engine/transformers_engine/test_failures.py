"""Passes that fail, requests that are cancelled, threads that share an engine."""

import asyncio
import threading

import pytest

from rksc_tot.core.errors import ContextOverflow, EngineError
from rksc_tot.engine.base import Account, LabelRequest
from tests.engine.requests import LABELS, PROMPT, ask, grow, texts


async def test_a_failing_pass_leaves_the_books_balanced(engine, monkeypatch):
    account = Account()
    root, first, _ = await grow(engine, account)
    with monkeypatch.context() as patch:
        patch.setattr(engine.forward.model, "forward", lambda **_: 1 / 0)
        with pytest.raises(EngineError, match="division by zero"):
            await engine.generate([ask(root, "new")], account)
    engine.check_integrity()
    (found,) = await engine.generate([ask(first[0].handle, "new")], account)
    assert found


async def test_one_search_failing_does_not_end_the_others(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    long = engine.extend(root, " 4" * 230)
    good, bad = await asyncio.gather(
        engine.generate([ask(root)], account),
        engine.label([LabelRequest(long, "try 1+2" * 20, LABELS)], account),
        return_exceptions=True,
    )
    assert isinstance(bad, ContextOverflow)
    assert good[0]


async def test_cancelling_a_request_frees_what_it_pinned(engine):
    account = Account()
    root = engine.open(PROMPT, account)
    task = asyncio.create_task(engine.generate([ask(root, k=8, max_tokens=200, stop=())], account))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.release(root)
    engine.clear()
    assert engine.usage.kv_bytes == 0


def test_threads_with_event_loops_of_their_own_share_an_engine(engine):
    results = {}

    def search(name):
        account = Account()

        async def run():
            root = engine.open(PROMPT, account)
            return await engine.generate([ask(root, name)], account)

        results[name] = texts(asyncio.run(run())[0])

    threads = [threading.Thread(target=search, args=(n,)) for n in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "abcd":
        engine.clear()
        together = results[name]
        search(name)
        assert results[name] == together


async def test_a_closed_engine_refuses_requests(engine):
    root = engine.open(PROMPT, Account())
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([ask(root)], Account())
