"""Passes are shared fairly, long prompts delay no other search, and shares do not depend on chance."""

import asyncio
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from rksc_tot import asolve, load_engine
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.job import Job
from rksc_tot.engine.scheduler import scheduler as scheduler
from rksc_tot.engine.scheduler.fair_share import SHORT, WHILE_OTHERS_WAIT, FairShare
from rksc_tot.policies.eviction.rsbcm import RSBCM
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import SHAPE, llama
from tests.engine.requests import ask, texts

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]


class Waiting(Job):
    """A job that waits for some paths with missing rows, and then for the same again."""

    def __init__(self, world, account, lacking, paths=1):
        self.world = world
        self.rounds = 0
        super().__init__(world.tree, world.tree.origin, account, 0)
        self.more(lacking, paths)

    def more(self, lacking, paths):
        tree = self.world.tree
        ends = [tree.walk(tree.origin, [self.world.token() for _ in range(lacking)]) for _ in range(paths)]
        self.tips = ends
        self.left = dict.fromkeys(ends, lacking)
        self.lacking = lacking

    def lacks(self, tip):
        return self.left[tip] > 0

    def take(self, tip, most):
        rows = min(most, self.left[tip])
        self.left[tip] -= rows
        self.tree.residency.store(tip, self.tree.residency.pool.allocate(rows))
        return rows


class World:
    """Fair share, with jobs that use all their rows."""

    def __init__(self):
        self.tree = PrefixTree(SlotPool(1 << 30), RSBCM())
        self.turns = FairShare()
        self.jobs = []
        self._token = 0

    def token(self):
        self._token += 1
        return self._token

    def add(self, lacking, paths=1, account=None):
        self.jobs.append(Waiting(self, account or Account(), lacking, paths))
        return self.jobs[-1]

    def step(self, rows):
        """A pass; returns the rows of each job."""
        got = dict.fromkeys(self.jobs, 0)
        for job, tip, most, _ in self.turns.deal(self.jobs, self.tree, rows):
            taken = job.take(tip, most)
            self.turns.book(job.account, taken)
            got[job] += taken
        for job in self.jobs:
            if not any(job.left.values()):
                job.more(job.lacking, len(job.tips))
        return got


# -- accounts ------------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=9), st.integers(1, 16))
def test_no_account_starves_and_no_row_of_a_pass_stays_free_while_a_job_waits(wants, rows):
    world = World()
    jobs = [world.add(1, paths=want) for want in wants]
    longest = ceil(len(wants) * max(wants) / rows) + 1  # in which the others have had as much
    waited = dict.fromkeys(jobs, 0)
    for _ in range(60):
        lacking = sum(sum(job.left.values()) for job in jobs)
        got = world.step(rows)
        assert sum(got.values()) == min(rows, lacking)
        for job in jobs:
            waited[job] = 0 if got[job] else waited[job] + 1
            assert waited[job] < longest


@settings(max_examples=20)
@given(st.integers(2, 9), st.integers(1, 12), st.integers(1, 30))
def test_accounts_with_equal_demand_get_equal_rows_up_to_one_job(accounts, want, rows):
    world = World()
    jobs = [world.add(1, paths=want) for _ in range(accounts)]
    served = dict.fromkeys(jobs, 0)
    for _ in range(60):
        for job, got in world.step(rows).items():
            served[job] += got
        assert max(served.values()) - min(served.values()) <= want


def test_many_jobs_do_not_increase_the_share_of_an_account():
    world = World()
    many, one = Account(), Account()
    jobs = [world.add(1, paths=4, account=many) for _ in range(9)]
    single = world.add(1, paths=4, account=one)
    served = {id(many): 0, id(one): 0}
    for _ in range(90):
        for job, got in world.step(4).items():
            served[id(job.account)] += got
    assert served == {id(many): 180, id(one): 180}
    assert len(jobs) == 9
    assert single.account is one


def test_a_new_account_starts_level_with_the_others():
    world = World()
    old = [world.add(1, paths=8) for _ in range(4)]
    for _ in range(40):
        world.step(8)
    new = world.add(1, paths=8)
    served = dict.fromkeys(world.jobs, 0)
    for _ in range(50):
        for job, got in world.step(8).items():
            served[job] += got
    assert served[new] == pytest.approx(80, abs=8)
    assert all(served[job] == pytest.approx(80, abs=8) for job in old)


@pytest.mark.parametrize("rows", [8, 9])
def test_an_idle_account_builds_up_no_priority(rows):
    world = World()
    busy = world.add(1, paths=8)
    modest = world.add(1, paths=1)
    for _ in range(100):  # both have all they want of nine rows, and almost of eight
        world.step(rows)
    modest.more(1, paths=100)
    got = [world.step(rows) for _ in range(8)]
    assert sum(passed[busy] for passed in got) >= 8 * rows // 2 - rows
    assert sum(passed[modest] for passed in got) >= 8 * rows // 2 - rows


def test_an_account_is_not_confused_with_an_earlier_one_of_the_same_id():
    world = World()
    world.add(1, paths=4)
    gone = world.add(1, paths=4)
    for _ in range(9):
        world.step(4)
    key = id(gone.account)
    world.jobs.remove(gone)
    del gone
    assert key not in {id(account) for account in [Account() for _ in range(1000)]}


# -- long and short ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(0, 6), st.integers(4, 600))
def test_long_parts_share_their_rows_and_short_parts_are_complete(longs, shorts, rows):
    world = World()
    long = [world.add(5000) for _ in range(longs)]
    short = [world.add(1) for _ in range(min(shorts, rows // 2))]
    got = world.step(rows)
    assert all(got[job] == 1 for job in short)
    share = rows // WHILE_OTHERS_WAIT if short else rows
    assert sum(got[job] for job in long) == min(share, rows - len(short))
    assert max(got[job] for job in long) - min(got[job] for job in long) <= 1


@settings(max_examples=15)
@given(st.integers(1, 24), st.integers(1, 30))
def test_a_long_part_advances_beside_any_number_of_short_parts(shorts, rows):
    world = World()
    short = [world.add(1) for _ in range(shorts)]
    prompt = world.add(2 * SHORT)
    (path,) = prompt.tips
    chunk = max(1, rows // WHILE_OTHERS_WAIT)
    waited = 0
    while prompt.left[path] > SHORT:
        got = world.step(rows)
        waited = 0 if got[prompt] else waited + 1
        assert waited <= ceil(chunk * shorts / rows) + 1  # until the others have had as much
        assert got[prompt] <= chunk
    assert {job.lacking for job in short} == {1}


# -- in the engine -------------------------------------------------------------------------------------------------------


def record_passes(monkeypatch):
    """The rows of each pass from now on, by the id of the account."""
    passes = []
    compute = scheduler.compute

    def recorded(forward, tree, blocks):
        rows = {}
        for made in blocks:
            rows[id(made.job.account)] = rows.get(id(made.job.account), 0) + made.rows
        logits = compute(forward, tree, blocks)
        passes.append(rows)
        return logits

    monkeypatch.setattr(scheduler, "compute", recorded)
    return passes


def roomy_llama(vocab_size):
    config = LlamaConfig(vocab_size=vocab_size, **SHAPE | {"max_position_embeddings": 4096, "num_hidden_layers": 2})
    return LlamaForCausalLM(config).eval()


def make(model=llama, **options):
    tokenizer = build_tokenizer()
    return TransformersEngine(model(len(tokenizer)), tokenizer, **options)


async def decode(engine, name, account, prompt="steps 4 5 6 10\n", **options):
    root = engine.open(prompt, account)
    (found,) = await engine.generate([ask(root, name, **{"k": 4, "max_tokens": 12, "stop": ()} | options)], account)
    for handle in (root, *(completion.handle for completion in found)):
        engine.release(handle)
    return texts(found)


async def test_searches_that_need_more_than_a_pass_take_turns(monkeypatch):
    with make(max_batch_tokens=8) as engine:
        passes = record_passes(monkeypatch)
        accounts = [Account() for _ in range(7)]
        crowd = [decode(engine, str(n), each, f"steps {n} 5 6 10\n") for n, each in enumerate(accounts)]
        found = await asyncio.gather(*crowd)
        alone = [await decode(engine, str(n), Account(), f"steps {n} 5 6 10\n") for n in range(7)]
        assert found == alone
    last = {id(each): max(n for n, rows in enumerate(passes) if id(each) in rows) for each in accounts}
    first = next(n for n, rows in enumerate(passes) if sum(rows.values()) == 8)
    both = passes[first : min(last.values())]
    assert len(both) > 12
    served = dict.fromkeys(last, 0)
    most = max(max(rows.values()) for rows in both)
    for rows in both:
        assert sum(rows.values()) == 8
        for key, count in rows.items():
            served[key] += count
        assert max(served.values()) - min(served.values()) <= 2 * most


async def test_a_long_prompt_delays_no_decode_step(monkeypatch):
    with make(roomy_llama) as engine:
        passes = record_passes(monkeypatch)

        async def run(long):
            accounts = [Account() for _ in range(8)]
            work = [decode(engine, str(n), each, max_tokens=20) for n, each in enumerate(accounts)]
            await asyncio.gather(*work, *([decode(engine, "long", *long, max_tokens=1)] if long else []))
            seen = [{n: rows.get(id(each)) for n, each in enumerate(accounts)} for rows in passes]
            prompt = [rows.get(id(long[0]), 0) for rows in passes] if long else []
            passes.clear()
            engine.clear()
            return seen, prompt

        without, _ = await run(None)
        beside, prompt = await run((Account(), "solve" + " 4" * 2000))
        assert beside == without
        chunks = [rows for rows in prompt if rows]
        assert prompt[: len(chunks)] == chunks
        assert sum(chunks) == 2001
        assert max(chunks) == engine.usage.most_rows // WHILE_OTHERS_WAIT


async def test_long_prompts_share_a_pass(monkeypatch):
    with make(roomy_llama, max_batch_tokens=256) as engine:
        passes = record_passes(monkeypatch)
        one, two = Account(), Account()
        await asyncio.gather(
            decode(engine, "one", one, "steps" + " 4" * 600, max_tokens=1),
            decode(engine, "two", two, "solve" + " 5" * 600, max_tokens=1),
        )
    assert len(passes) == 5
    assert all(rows[id(one)] == rows[id(two)] == 128 for rows in passes[:4])


@pytest.mark.parametrize("most", [48, 2048])
def test_the_same_searches_make_the_same_passes(monkeypatch, most):
    async def run(engine, passes):
        searches = [asolve("game24", p, engine=engine, strategy=BFS(b=2, k=4), verifier="lm_value") for p in PUZZLES]
        found = await asyncio.gather(*searches)
        engine.clear()
        sizes = [list(rows.values()) for rows in passes]
        passes.clear()
        return sizes, [result.tree.to_records() for result in found]

    with load_engine(max_batch_tokens=most) as engine:
        passes = record_passes(monkeypatch)
        first, again = asyncio.run(run(engine, passes)), asyncio.run(run(engine, passes))
    assert first == again
    assert len(first[0]) > 30
    assert max(map(sum, first[0])) <= most
