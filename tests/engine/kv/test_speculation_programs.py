"""Random programs of requests: drafting on compressed KV does not change their output, to the last bit."""

import asyncio
import random

import numpy as np
import pytest

from rksc_tot.core.errors import CacheError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES
from rksc_tot.policies.early_exit.cgee import RivalStop
from tests.engine.conftest import PER_TOKEN
from tests.engine.kv.lossless import HOT, POLICIES, PROMPTS, held, run, written
from tests.seeds import seeds

SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.5),
    HOT,
    Sampling(temperature=1, top_k=5),
    Sampling(temperature=1, top_p=0.6),
)
STOPS = ((), ("a",), ("e", "o", "\n"), ("ab", "b"))


def test_every_registered_policy_is_tried():
    assert {policy.name for policy in POLICIES.values()} == {*COMPRESSION_POLICIES.names(), "nonsense"}


def program(seed):
    """Rounds of requests: ``(requests by path, most sampled tokens, labels of questions)``."""
    rng = random.Random(seed)
    rounds = []
    for turn in range(rng.randint(1, 3)):
        asked = [
            (
                rng.random(),
                {
                    "streams": stream_keys(range(rng.randint(1, 5)), turn, rng.randrange(2)),
                    "sampling": rng.choice(SAMPLINGS),
                    "max_tokens": rng.choice((1, 2, 5, 20, 40)),
                    "stop": rng.choice(STOPS),
                    "keep_stop": rng.random() < 0.5,
                    "suffix": " so " if rng.random() < 0.25 else None,
                    "states": rng.random() < 0.2,
                    "rivals": RivalStop(confidence=0.3, margin=0.1) if rng.random() < 0.15 else None,
                },
            )
            for _ in range(rng.randint(1, 3))
        ]
        rounds.append((asked, rng.choice((None, None, None, rng.randint(1, 60))), rng.randint(0, 2)))
    return rounds


async def play(engine, rounds):
    """All results of a program, the rows of its handles, and the numbers of branches, draft tokens and dropped tokens."""
    found, handles, counts = await work(engine, rounds)
    return found, held(engine, handles), counts


async def work(engine, rounds):
    """All results of a program, its handles, and the numbers of branches, draft tokens and dropped tokens."""
    found, counts = [], np.zeros(3, dtype=int)
    handles = [engine.open(text, Account()) for text in PROMPTS]
    for asked, tokens, labels in rounds:
        account = Account(tokens_left=tokens)
        requests = [GenerateRequest(handles[int(at * len(handles))], **what) for at, what in asked]
        questions = [LabelRequest(handles[n % len(handles)], " ok", ("yes", "no")) for n in range(labels)]
        replies, scores = await asyncio.gather(engine.generate(requests, account), engine.label(questions, account))
        found.append((list(map(written, replies)), scores, account.tokens_left, account.ledger.tokens_sampled))
        made = [c.handle for reply in replies for c in reply if c.handle is not None]
        if len(made) > 1:
            found.append(engine.similarity(made[0], made[1:], 0.5))
        assert all(c.exact for reply in replies for c in reply)
        handles += made
        verified = account.ledger.verified
        assert verified.drafted == verified.accepted + verified.rejected
        counts += sum(len(what["streams"]) for _, what in asked), verified.drafted, account.ledger.compression.tokens
    return found, handles, counts


@pytest.fixture(scope="module")
def plainly(make):
    """The results of programs without drafts."""
    known = {}

    def found(seed, rows):
        if (seed, rows) not in known:
            known[seed, rows] = run(make(max_batch_tokens=rows), lambda engine: play(engine, program(seed)))
        return known[seed, rows]

    return found


ROWS_AND_HORIZONS = ((2048, 32), (7, 5), (64, 8), (1, 3), (2048, 1), (2, 32))
HALVES = ((0, 1, 5), (2, 3, 4))  # seeds of programs


@pytest.mark.parametrize(("policy", "half"), [
    pytest.param(policy, half, marks=() if half == n % 2 else pytest.mark.slow)
    for n, policy in enumerate(POLICIES) for half in (0, 1)
])  # fmt: skip
def test_drafting_does_not_change_output(make, plainly, policy, half):
    """Each policy plays half of the programs in every run, the others under ``-m slow``."""
    counts = np.zeros(3, dtype=int)
    for seed in HALVES[half]:
        rows, horizon = ROWS_AND_HORIZONS[seed]
        wanted = plainly(seed, rows)  # first: one engine at a time has the model
        engine = make(max_batch_tokens=rows, compress=POLICIES[policy], lossless=Lossless(horizon=horizon, share=0.3))
        found = run(engine, lambda engine, seed=seed: play(engine, program(seed)))
        assert found[:2] == wanted[:2]
        counts += found[2]
    branches, drafted, reduced = counts
    assert branches * len(POLICIES) > 100
    assert drafted > 50
    assert reduced > 5


@pytest.mark.parametrize("seed", seeds(3, 60))
def test_drafting_does_not_change_output_under_any_settings(make, seed):
    rng, seed = random.Random(100 + seed), 100 + seed
    options = {"max_batch_tokens": rng.choice((1, 2, 7, 64, 2048))}
    if rng.random() < 0.5:
        options["kv_budget"] = rng.choice((200, 120, 90)) * PER_TOKEN
    policy = rng.choice(list(POLICIES.values()))
    settings = Lossless(horizon=rng.choice((1, 2, 5, 32)), share=rng.random())
    try:
        wanted = run(make(**options), lambda engine: play(engine, program(seed)))
    except CacheError:
        return
    found = run(make(compress=policy, lossless=settings, **options), lambda engine: play(engine, program(seed)))
    assert found[0] == wanted[0]


@pytest.mark.parametrize("seed", seeds(1, 30))
def test_concurrent_programs_and_cancellations_do_not_change_output(make, seed):
    rng = random.Random(seed)
    seeds = [rng.randrange(1000) for _ in range(rng.randint(2, 4))]
    programs = [[(asked, None, labels) for asked, _, labels in program(n)] for n in [*seeds, seeds[0]]]
    patience = [rng.choice((None, None, rng.randrange(1500))) for _ in programs]
    with make() as engine:
        wanted = [asyncio.run(play(engine, rounds))[0] for rounds in programs]

    async def impatient(engine, rounds, rest):
        task = asyncio.create_task(work(engine, rounds))
        while not task.done() and rest != 0:
            await asyncio.sleep(0)
            rest = None if rest is None else rest - 1
        task.cancel()
        try:
            return (await task)[0]
        except asyncio.CancelledError:
            return None

    async def together(engine):
        found = await asyncio.gather(*(impatient(engine, *which) for which in zip(programs, patience, strict=True)))
        engine.engine_thread.empty_inbox()
        assert engine.usage.waiting == 0
        assert [s for s in engine.cache.segments() if s.pins] == []
        engine.check_integrity()
        return found

    room = rng.choice((None, 600, 2000))
    options = {} if room is None else {"kv_budget": room * PER_TOKEN}
    policy, rows = rng.choice(list(POLICIES.values())), rng.choice((2, 7, 64, 2048))
    found = run(make(compress=policy, lossless=Lossless(horizon=9), max_batch_tokens=rows, **options), together)
    assert all(got in (None, want) for got, want in zip(found, wanted, strict=True))
    assert all(got is not None for got, rest in zip(found, patience, strict=True) if rest is None)
