"""If memory runs short in a pass, passes become smaller and grow back later."""

import itertools

import pytest
import torch

from rksc_tot.core.errors import EngineError
from rksc_tot.engine.base import Account
from tests.engine.conftest import PER_TOKEN
from tests.engine.requests import PROMPT, ask, texts
from tests.engine.scheduler.tiny_engine import make


async def test_a_pass_that_runs_out_of_memory_is_tried_again_with_fewer_rows(monkeypatch, caplog):
    with make() as engine:
        account, plain = Account(), Account()
        calls = itertools.count()
        real = torch.Tensor.new_zeros

        def scarce(self, *shape, **options):
            if next(calls) in (2, 3):
                raise torch.OutOfMemoryError("no room")
            return real(self, *shape, **options)

        prompts = ["steps" + f" {n}" * 200 for n in range(8)]
        roots = [engine.open(prompt, account) for prompt in prompts]
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "new_zeros", scarce)
            found = await engine.generate([ask(root, k=1, max_tokens=1) for root in roots], account)
        assert account.ledger.backoffs == caplog.text.count("ran out of memory; the next has") > 0
        arena = engine.forward.arena
        assert {t.shape[1] for t in (*arena.keys.values(), *arena.values.values())} == {arena.rows}
        engine.check_integrity()
        with make() as other:
            wanted = await other.generate([ask(other.open(p, plain), k=1, max_tokens=1) for p in prompts], plain)
        assert [[c.text for c in reply] for reply in found] == [[c.text for c in reply] for reply in wanted]
        assert account.ledger.prefill_tokens == plain.ledger.prefill_tokens


@pytest.mark.parametrize("where", ["reserve", "forward"])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no room"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
    ],
    ids=["device", "python", "allocator"],
)
async def test_passes_stay_small_while_memory_is_short_and_grow_back_later(monkeypatch, where, error):
    monkeypatch.setattr("rksc_tot.engine.scheduler.scheduler.RECOVERY", 4)
    prompts = [f"steps {n} 5 6 10\n" for n in range(8)]

    async def run(engine, account, name):
        roots = [engine.open(prompt, account) for prompt in prompts]
        found = await engine.generate([ask(root, name, k=4, max_tokens=14, stop=()) for root in roots], account)
        return [texts(each) for each in found]

    with make() as engine:
        wanted = [await run(engine, Account(), name) for name in "ab"]
    with make(max_batch_tokens=64) as engine:
        account = Account(kv_bytes=1 << 20)
        rows, failed, lifted, most = 0, 0, 0, []
        plan, place = engine.forward.plan, engine.forward.arena if where == "reserve" else engine.forward.model
        real = getattr(place, where)

        def planned(blocks):
            nonlocal rows
            rows = sum(len(block.tokens) for block in blocks)
            return plan(blocks)

        def scarce(*arguments, **options):
            nonlocal failed, lifted
            if rows > 10 and failed < 5:  # then there is room again
                failed, lifted = failed + 1, len(most)
                raise error
            most.append(engine.usage.most_rows)
            assert rows <= most[-1]
            return real(*arguments, **options)

        monkeypatch.setattr(engine.forward, "plan", planned)
        monkeypatch.setattr(place, where, scarce)
        assert [await run(engine, account, name) for name in "ab"] == wanted
        assert account.ledger.backoffs == failed == 5
        assert most[lifted] <= 10
        after = most[lifted:]
        assert after == sorted(after)
        assert after[-1] == engine.usage.most_rows == 64
        assert all(after.count(size) == 4 for size in set(after) - {64})
        engine.check_integrity()


async def test_when_not_even_one_row_fits_into_memory_the_request_fails(monkeypatch):
    with make() as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        with monkeypatch.context() as patch:
            patch.setattr(engine.forward, "run", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room")))
            with pytest.raises(EngineError, match="no room"):
                await engine.generate([ask(root, k=1, max_tokens=1)], account)
        assert len(await engine.generate([ask(root, k=1, max_tokens=1)], account)) == 1


async def test_a_failed_pass_loses_no_booking(monkeypatch):
    with make(kv_budget=6 * PER_TOKEN) as engine:
        account = Account()
        root, other = engine.open(PROMPT, account), engine.open("solve 1 2 3 4\n", account)
        await engine.generate([ask(root, max_tokens=1)], account)
        await engine.generate([ask(other, max_tokens=1)], account)  # evicts the first
        with monkeypatch.context() as patch:
            patch.setattr(engine.forward.model, "forward", lambda **_: 1 / 0)
            with pytest.raises(EngineError, match="division by zero"):
                await engine.generate([ask(root, max_tokens=1)], account)
        await engine.generate([ask(root, max_tokens=1)], account)
        assert (account.ledger.distinct_tokens, account.ledger.recomputed_tokens) == (12, 6)
