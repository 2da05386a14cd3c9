"""Event loops and threads share an engine: none waits for a pass of another, and all get their own results."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rksc_tot import asolve, load_engine, solve
from rksc_tot.core.errors import EngineError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import llama
from tests.engine.requests import LABELS, PROMPT, ask, texts
from tests.patience import PATIENCE
from tests.seeds import seeds

SEARCH = {"strategy": BFS(b=2, k=4), "verifier": "lm_value"}
PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]


def make(**options):
    tokenizer = build_tokenizer()
    return TransformersEngine(llama(len(tokenizer)), tokenizer, **options)


def grown(result):
    """A tree without numbers, whose last digits may differ by rounding."""
    return result.path, [(n.branch, n.text, n.tokens, n.count, n.finished, n.pruned) for n in result.tree]


class EarlyExit:
    """Passes that wait to be let through."""

    def __init__(self, engine, monkeypatch):
        self.reached, self.open, self.impatient = threading.Event(), threading.Event(), False
        run = engine.forward.run

        def waiting(*arguments):
            self.reached.set()
            self.impatient |= not self.open.wait(PATIENCE)
            return run(*arguments)

        monkeypatch.setattr(engine.forward, "run", waiting)

    async def busy(self):
        """Until a pass is running."""
        while not self.reached.is_set():
            await asyncio.sleep(0)


async def work(engine, account, name, kept):
    """A search of a few requests; appends handles to ``kept``."""
    kept.append(engine.open(f"steps {name} 5 6 10\n", account))
    (found,) = await engine.generate([ask(kept[0], name, k=3, max_tokens=6)], account)
    kept += [completion.handle for completion in found]
    kept.append(engine.extend(kept[0], "10 -"))
    await engine.label([LabelRequest(handle, "try so", LABELS) for handle in kept], account)
    (more,) = await engine.generate([ask(kept[-1], name, k=2, max_tokens=6)], account)
    kept += [completion.handle for completion in more]
    return texts(found), texts(more)


def forget(engine, kept):
    """Release all handles; then no KV may be left."""
    for handle in kept:
        engine.release(handle)
    engine.check_integrity()
    assert [s for s in engine.cache.segments() if s.handles or s.pins] == []
    engine.clear()
    assert list(engine.cache.segments()) == []
    assert engine.usage.kv_bytes == 0
    assert engine.usage.waiting == 0


async def test_only_results_wait_for_a_pass(monkeypatch):
    with make() as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        (found,) = await engine.generate([ask(root, k=2)], account)
        gate = EarlyExit(engine, monkeypatch)
        first = asyncio.create_task(engine.generate([ask(root, "b")], account))
        await gate.busy()
        engine.rate(found[0].handle, 0.5, 1)
        engine.release(found[0].handle)
        longer = engine.extend(root, "10 -")
        other = engine.open("solve 1 2 3 4\n", account)
        assert other.length == 6
        assert longer.length == 8
        assert engine.usage.waiting == 1
        second = asyncio.create_task(engine.generate([ask(longer, "c"), ask(other, "d")], account))
        for _ in range(50):
            await asyncio.sleep(0)
        assert [first.done(), second.done()] == [False, False]
        gate.open.set()
        await asyncio.gather(first, second)
        assert not gate.impatient
        assert longer.segment.parent is root.segment


async def test_cancelling_does_not_wait_for_a_pass(monkeypatch):
    with make() as engine:
        root = engine.open(PROMPT, Account())
        gate = EarlyExit(engine, monkeypatch)
        task = asyncio.create_task(engine.generate([ask(root)], Account()))
        await gate.busy()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not gate.open.is_set()
        gate.open.set()
        forget(engine, [root])
        assert not gate.impatient


async def test_the_books_do_not_change_during_a_pass(monkeypatch):
    with make() as engine:
        root = engine.open(PROMPT, Account())
        gate = EarlyExit(engine, monkeypatch)
        task = asyncio.create_task(engine.generate([ask(root)], Account()))
        await gate.busy()
        done = threading.Event()
        thread = threading.Thread(target=lambda: (engine.clear(), done.set()))
        thread.start()
        assert not done.wait(0.1)
        gate.open.set()
        await task
        thread.join(PATIENCE)
        assert done.is_set()
        assert not gate.impatient


def test_event_loops_and_threads_on_one_engine_give_the_results_of_each_alone():
    with load_engine() as engine:
        alone = {puzzle: grown(solve("game24", puzzle, engine=engine, **SEARCH)) for puzzle in PUZZLES}
        engine.clear()
        ready = threading.Barrier(4)

        async def gathered(puzzles):
            return await asyncio.gather(*(asolve("game24", p, engine=engine, **SEARCH) for p in puzzles))

        def loop(puzzles):
            ready.wait(PATIENCE)
            return asyncio.run(gathered(puzzles))

        def plain(puzzles):
            ready.wait(PATIENCE)
            return [solve("game24", puzzle, engine=engine, **SEARCH) for puzzle in puzzles]

        shares = [(loop, PUZZLES[:3]), (loop, PUZZLES[1:]), (plain, PUZZLES[:2]), (plain, PUZZLES[:2])]
        with ThreadPoolExecutor(4) as pool:
            running = [(pool.submit(call, puzzles), puzzles) for call, puzzles in shares]
            for future, puzzles in running:
                assert [grown(result) for result in future.result(3 * PATIENCE)] == [alone[p] for p in puzzles]
        forget(engine, [])


@pytest.mark.parametrize("seed", seeds(4, 60))
async def test_requests_cancelled_at_any_moment_leave_nothing_and_harm_no_other_request(seed):
    chance = random.Random(seed)
    with make(max_batch_tokens=chance.choice([3, 16, 2048]), kv_budget=chance.choice(["64KiB", "1GiB"])) as engine:
        wanted = {name: await work(engine, Account(), name, []) for name in "46"}
    with make(max_batch_tokens=chance.choice([3, 16, 2048]), kv_budget=chance.choice(["64KiB", "1GiB"])) as engine:
        kept = [[] for _ in range(8)]
        tasks = [asyncio.create_task(work(engine, Account(), "46"[n % 2], kept[n])) for n in range(8)]
        doomed = chance.sample(range(8), 5)
        for n in doomed:
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            passes = engine.usage.passes + chance.randrange(4)
            while engine.usage.passes < passes and engine.usage.waiting:
                await asyncio.sleep(0)
            tasks[n].cancel()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        for n, outcome in enumerate(found):
            if not (n in doomed and isinstance(outcome, asyncio.CancelledError)):
                assert outcome == wanted["46"[n % 2]]
        forget(engine, [handle for each in kept for handle in each])


@pytest.mark.parametrize("seed", seeds(3, 40))
async def test_closing_at_any_moment_ends_every_request_on_every_loop(seed):
    chance = random.Random(seed)
    engine = make(max_batch_tokens=chance.choice([3, 2048]))
    started = threading.Event()

    async def elsewhere():
        started.set()
        mine = (work(engine, Account(), name, []) for name in "579")
        return await asyncio.wait_for(asyncio.gather(*mine, return_exceptions=True), PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(asyncio.run, elsewhere())
        tasks = [asyncio.create_task(work(engine, Account(), name, [])) for name in "468"]
        started.wait(PATIENCE)
        passes = chance.randrange(25)
        while engine.usage.passes < passes and not all(task.done() for task in tasks):
            await asyncio.sleep(0)
        await asyncio.to_thread(engine.close) if seed % 2 else engine.close()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        found += await asyncio.wrap_future(other)
    for outcome in found:
        assert isinstance(outcome, tuple) or (isinstance(outcome, EngineError) and "closed" in str(outcome))
    assert engine.usage.waiting == 0
    assert engine.forward.arena.rows == 0
