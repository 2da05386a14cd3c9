"""VeriCache: whatever is drafted on reduced KV, what comes out is what comes out without drafts, to the last bit."""

import asyncio
import logging
import random
from typing import ClassVar

import numpy as np
import pytest

from rksc_tot import asolve, load_engine, solve, solve_many
from rksc_tot.core.errors import CacheError, EngineError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.engine.jobs.generation.draft import DraftJob
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.base import COMPRESSION_POLICIES, PathPolicy
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from rksc_tot.policies.early_exit.cgee import RivalStop
from rksc_tot.strategies import BFS
from tests.engine.conftest import byte_tokenizer, llama
from tests.seeds import seeds

HOT = Sampling(temperature=1.2)
SAMPLINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.5),
    HOT,
    Sampling(temperature=1, top_k=5),
    Sampling(temperature=1, top_p=0.6),
)
STOPS = ((), ("a",), ("e", "o", "\n"), ("ab", "b"))
PROMPTS = ("say", "say yes no", "é\n")


class Nonsense(PathPolicy):
    """A policy that keeps the first tokens, which is to say next to nothing of what matters."""

    name: ClassVar[str] = "nonsense"

    def select(self, view, budget, rng):
        return np.arange(min(budget, len(view)))


class Faulty(PathPolicy):
    """A policy that always fails."""

    name: ClassVar[str] = "faulty"

    def select(self, view, budget, rng):
        raise ZeroDivisionError("one\n  by nought")


POLICIES = {
    "random_attention": RandomAttention(budget=12, recent=3),
    "random_attention, one set": RandomAttention(budget=9, recent=2, pin_prompt=False, sets="one"),
    "streaming": Streaming(budget=10, recent=2, pin_prompt=False),
    "snapkv": SnapKV(budget=10, recent=3, pin_prompt=False),
    "arborkv": ArborKV(tail=1, sinks=0),
    "arborkv, lossy": ArborKV(tail=0, sinks=0, rehydrate=False, within="random"),
    "nonsense": Nonsense(budget=1, recent=1, pin_prompt=False),
}
NONSENSE = POLICIES["nonsense"]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def make(tokenizer):
    """Makes engines on one model, each packed, so that no bit of a row depends on its company."""
    model = llama(len(tokenizer))

    def made(**options):
        engine = TransformersEngine(model, tokenizer, name="tiny", pack=True, **options)
        assert engine.capabilities.batch_invariant
        return engine

    return made


def test_every_registered_policy_is_tried():
    assert {policy.name for policy in POLICIES.values()} == {*COMPRESSION_POLICIES.names(), "nonsense"}


# -- programs ------------------------------------------------------------------------------------------------------------


def program(seed):
    """Rounds of requests: ``(what to ask of which path, tokens that may be sampled, labels to ask for)``."""
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


def written(completions):
    return [(c.text, c.tokens, c.branches, c.finish, c.logprobs) for c in completions]


async def play(engine, rounds):
    """All that comes of a program, the rows its handles held, and how many branches, drafted and reduced tokens that were."""
    found, handles, counts = await work(engine, rounds)
    return found, held(engine, handles), counts


async def work(engine, rounds):
    """All that comes of a program, its handles, and how many branches, drafted and reduced tokens that were."""
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


def held(engine, handles):
    """Rows that the handles hold; nothing else is left, and nothing at all once they are given back."""
    engine.check_integrity()
    assert [s for s in engine.cache.segments() if s.pins] == []
    assert engine.usage.waiting == 0
    tops = {segment.parent for segment in engine.cache.segments() if segment.start == 0}
    assert tops <= {engine.cache.origin}  # no draft copy is left
    engine.clear()
    rows = engine.cache.residency.pool.used
    for handle in handles:
        engine.release(handle)
    engine.check_integrity()
    engine.clear()
    assert list(engine.cache.segments()) == []
    assert engine.cache.residency.pool.used == 0
    return rows


def run(engine, work):
    with engine:
        return asyncio.run(work(engine))


@pytest.fixture(scope="module")
def plainly(make):
    """What programs come to without drafts."""
    known = {}

    def found(seed, rows):
        if (seed, rows) not in known:
            known[seed, rows] = run(make(max_batch_tokens=rows), lambda engine: play(engine, program(seed)))
        return known[seed, rows]

    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_drafted_is_no_matter_to_what_comes_out(make, plainly, policy):
    counts = np.zeros(3, dtype=int)
    for seed, (rows, horizon) in enumerate(((2048, 32), (7, 5), (64, 8), (1, 3), (2048, 1), (2, 32))):
        wanted = plainly(seed, rows)  # first: one engine at a time has the model
        engine = make(max_batch_tokens=rows, compress=POLICIES[policy], lossless=Lossless(horizon=horizon, share=0.3))
        found = run(engine, lambda engine, seed=seed: play(engine, program(seed)))
        assert found[:2] == wanted[:2]
        counts += found[2]
    branches, drafted, reduced = counts
    assert branches * len(POLICIES) > 200
    assert drafted > 100
    assert reduced > 30


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_what_is_drafted_is_no_matter_under_any_settings(make, seed):
    rng, seed = random.Random(100 + seed), 100 + seed
    options = {"max_batch_tokens": rng.choice((1, 2, 7, 64, 2048))}
    if rng.random() < 0.5:
        options["kv_budget"] = rng.choice((200, 120, 90)) * 576
    policy = rng.choice(list(POLICIES.values()))
    settings = Lossless(horizon=rng.choice((1, 2, 5, 32)), share=rng.random())
    try:
        wanted = run(make(**options), lambda engine: play(engine, program(seed)))
    except CacheError:
        return
    found = run(make(compress=policy, lossless=settings, **options), lambda engine: play(engine, program(seed)))
    assert found[0] == wanted[0]


@pytest.mark.parametrize("seed", seeds(2, 30))
def test_programs_at_once_are_no_matter_to_each_other_nor_is_who_is_cancelled(make, seed):
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
    options = {} if room is None else {"kv_budget": room * 576}
    policy, rows = rng.choice(list(POLICIES.values())), rng.choice((2, 7, 64, 2048))
    found = run(make(compress=policy, lossless=Lossless(horizon=9), max_batch_tokens=rows, **options), together)
    assert all(got in (None, want) for got, want in zip(found, wanted, strict=True))
    assert all(got is not None for got, rest in zip(found, patience, strict=True) if rest is None)


# -- single conditions ---------------------------------------------------------------------------------------------------


def ask(handle, name="s", k=4, max_tokens=40, sampling=HOT, **options):
    return GenerateRequest(handle, stream_keys(range(k), name), sampling, max_tokens, **options)


async def grow(engine, account, *names, **options):
    """Requests for one prompt, made together."""
    root = engine.open("say yes", account)
    replies = await engine.generate([ask(root, name, **options) for name in names], account)
    rows = held(engine, [root, *(c.handle for reply in replies for c in reply)])
    return [written(reply) for reply in replies], rows


@pytest.fixture(scope="module")
def wanted(make):
    return run(make(), lambda engine: grow(engine, Account(), "s"))


@pytest.mark.parametrize("temperature", [0, 1.2])
@pytest.mark.parametrize("policy", [RandomAttention(budget=500), Streaming(budget=500), SnapKV(budget=500)])
def test_where_everything_is_kept_everything_is_accepted(make, policy, temperature):
    account, sampling = Account(), Sampling(temperature=temperature)
    plain = run(make(), lambda engine: grow(engine, Account(), "s", sampling=sampling))
    found = run(make(compress=policy, lossless=True), lambda engine: grow(engine, account, "s", sampling=sampling))
    assert found == plain
    assert account.ledger.verified.acceptance == 1.0
    assert account.ledger.compression.tokens == 0
    assert account.ledger.verified.drafted > 100


def test_nonsense_is_rejected(make, wanted):
    account = Account()
    found = run(make(compress=NONSENSE, lossless=True), lambda engine: grow(engine, account, "s"))
    assert found == wanted
    assert account.ledger.verified.acceptance < 0.7
    assert account.ledger.compression.tokens > 0


def test_what_was_written_before_is_written_again(make, wanted):
    """The path is resident then, but the logits on the way are gone."""

    async def twice(engine):
        account = Account()
        root = engine.open("say yes", account)
        found = []
        for _ in range(2):
            (reply,) = await engine.generate([ask(root)], account)
            found.append(written(reply))
            for completion in reply:
                engine.release(completion.handle)
        held(engine, [root])
        return found

    assert run(make(compress=NONSENSE, lossless=Lossless(horizon=6)), twice) == wanted[0] * 2


@pytest.mark.parametrize("policy", [*COMPRESSION_POLICIES.names(), "nonsense"])
async def test_searches_at_once_get_what_each_gets_alone(make, wanted, policy):
    """Two of them write the same, so that each stands on what the other one drafted."""

    async def search(engine, account):
        root = engine.open("say yes", account)
        (reply,) = await engine.generate([ask(root)], account)
        for handle in (root, *(completion.handle for completion in reply)):
            engine.release(handle)
        return written(reply)

    with make(compress=POLICIES[policy], lossless=Lossless(horizon=7)) as engine:
        accounts = [Account() for _ in range(3)]
        others = [grow_elsewhere(engine, n) for n in range(2)]
        *found, one, two = await asyncio.gather(*(search(engine, account) for account in accounts), *others)
        held(engine, [])
    assert found == [wanted[0][0]] * 3
    with make() as engine:
        assert [one, two] == [await grow_elsewhere(engine, n) for n in range(2)]
    for account in accounts:
        verified = account.ledger.verified
        assert verified.drafted == verified.accepted + verified.rejected > 0


async def grow_elsewhere(engine, n):
    account = Account()
    root = engine.open(PROMPTS[n], account)
    (reply,) = await engine.generate([ask(root, n, max_tokens=25)], account)
    for handle in (root, *(completion.handle for completion in reply)):
        engine.release(handle)
    return written(reply)


@pytest.mark.parametrize(
    ("tokens", "of_run"), [(1, False), (50, False), (319, False), (320, False), (50, True), (320, True)]
)
def test_a_budget_of_tokens_cuts_the_branches_it_cuts_without_drafts(make, tokens, of_run):
    """Of two requests at once; 320 is what they may draw at most."""

    def account():
        return Account(run=Account(tokens_left=tokens)) if of_run else Account(tokens_left=tokens)

    plain, drafted = account(), account()
    wanted = run(make(), lambda engine: grow(engine, plain, "a", "b"))
    found = run(make(compress=NONSENSE, lossless=Lossless(horizon=6)), lambda engine: grow(engine, drafted, "a", "b"))
    assert found == wanted
    assert drafted.ledger.tokens_sampled == plain.ledger.tokens_sampled <= tokens
    assert (drafted.ledger.verified.drafted > 0) == (tokens == 320)


@pytest.mark.parametrize("rows", [48, 100, 170])
@pytest.mark.parametrize("policy", [NONSENSE, POLICIES["arborkv"]], ids=["nonsense", "arborkv"])
def test_an_account_that_may_hold_little_ends_where_it_ends_without_drafts(make, rows, policy):
    plain, drafted = (Account(kv_bytes=rows * 576) for _ in range(2))
    wanted = run(make(), lambda engine: grow(engine, plain, "a", "b"))
    found = run(make(compress=policy, lossless=Lossless(horizon=6)), lambda engine: grow(engine, drafted, "a", "b"))
    assert found[0] == wanted[0]
    assert drafted.kv_short == plain.kv_short == (rows < 170)
    assert drafted.kv_rows == plain.kv_rows == 0


@pytest.mark.parametrize(("tokens", "rows", "policy"), [
    (50, 1, NONSENSE), (90, 2048, POLICIES["arborkv"]), (170, 64, NONSENSE), (170, 2048, POLICIES["arborkv"]),
    (400, 2048, NONSENSE),
], ids=lambda value: getattr(value, "called", None))  # fmt: skip
def test_with_room_for_little_more_than_one_path_there_is_no_room_for_drafts_but_for_the_result(
    make, wanted, tokens, rows, policy
):
    options = {"kv_budget": tokens * 576, "max_batch_tokens": rows}
    engine = make(compress=policy, lossless=Lossless(horizon=6), **options)
    assert run(engine, lambda engine: grow(engine, Account(), "s", k=1))[0] == [wanted[0][0][:1]]
    try:
        plain = run(make(**options), lambda engine: grow(engine, Account(), "a", "b"))
    except CacheError:
        assert tokens < 170
        return
    engine = make(compress=policy, lossless=Lossless(horizon=6), **options)
    assert run(engine, lambda engine: grow(engine, Account(), "a", "b"))[0] == plain[0]
    assert engine.cache.residency.pool.peak <= tokens


@pytest.mark.parametrize(
    ("name", "stop", "tokens"),
    [("e", ("a", "e"), 84), ("f", ("s", "n", "y", "x"), 74), ("h", ("s", "n", "y", "x"), 102)],
)
def test_branches_that_end_early_leave_the_others_the_room_they_leave_without_drafts(make, name, stop, tokens):
    """Just so many tokens suffice, as some branches have ended when the others are long."""

    def least(engine):
        return grow(engine, Account(), name, stop=stop)

    plain = run(make(kv_budget=tokens * 576), least)
    with pytest.raises(CacheError):
        run(make(kv_budget=(tokens - 1) * 576), least)
    engine = make(kv_budget=tokens * 576, compress=NONSENSE, lossless=True)
    assert run(engine, least)[0] == plain[0]


@pytest.mark.parametrize("passes", [3, 17, 40])
def test_a_deadline_cuts_off_what_would_have_been_written(make, wanted, passes):
    """It comes after so many passes."""
    whole = {branch: text for text, _, branches, *_ in wanted[0][0] for branch in branches}
    engine, account = make(compress=NONSENSE, lossless=Lossless(horizon=6)), Account()
    run_pass = engine.forward.run

    def run_some(*arguments):
        if engine.usage.passes == passes:
            account.deadline = 0.0
        return run_pass(*arguments)

    engine.forward.run = run_some
    found = run(engine, lambda engine: grow(engine, account, "s"))
    assert sum(len(text) for text, *_ in found[0][0]) < sum(map(len, whole.values()))
    for text, _, branches, finish, _ in found[0][0]:
        assert finish == "budget"
        assert all(whole[branch].startswith(text) for branch in branches)
    verified = account.ledger.verified
    assert verified.drafted == verified.accepted + verified.rejected


@pytest.mark.parametrize("tokens", [12, 20, 28, 40, 60])
def test_generations_and_drafts_for_which_there_is_no_room_end_in_a_sentence(make, tokens):
    engine = make(
        compress=ArborKV(tail=0, sinks=0), lossless=Lossless(horizon=8), kv_budget=tokens * 576, max_batch_tokens=64
    )

    async def several(engine):
        root = engine.open("say yes", Account())
        writing = (engine.generate([ask(root, name, k=2)], Account()) for name in ("a", "b", "c"))
        return await asyncio.gather(*writing, return_exceptions=True)

    for found in run(engine, several):
        assert not isinstance(found, Exception) or isinstance(found, CacheError)


# -- what goes wrong -----------------------------------------------------------------------------------------------------


async def drafting(engine):
    """Until a draft is being written; its pass may be running."""
    while not any(isinstance(job, DraftJob) for job in list(engine.scheduler.jobs)):
        await asyncio.sleep(0)


async def test_whoever_is_cancelled_leaves_nothing_behind(make, wanted):
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


async def test_an_engine_that_is_closed_meanwhile_ends_what_runs(make):
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


def test_a_policy_that_fails_is_told_of_once_and_nothing_is_drafted(make, wanted, caplog):
    account = Account()
    policy = Faulty(budget=1, recent=1, pin_prompt=False)
    with caplog.at_level(logging.WARNING, "rksc_tot"):
        found = run(make(compress=policy, lossless=True), lambda engine: grow(engine, account, "s"))
    assert found == wanted
    (told,) = [record.message for record in caplog.records if "faulty" in record.message]
    assert told.startswith(
        "no token is drafted any more: compression policy 'faulty': its select, with 2 tokens and a budget of 1, "
    )
    assert told.endswith("raised ZeroDivisionError: one by nought - correct the policy")
    assert account.ledger.verified.drafted == 0


async def test_what_a_draft_took_is_on_the_account_of_its_search(make):
    with make(compress=NONSENSE, lossless=True) as engine:
        one, two = Account(), Account()
        long, short = (engine.open(text, Account()) for text in ("say yes", "no"))
        await asyncio.gather(engine.generate([ask(long)], one), engine.generate([ask(short, max_tokens=1)], two))
        assert one.ledger.compression.acted > 0
        assert one.ledger.verified.rows > 0
        assert two.ledger.compression.acted == two.ledger.verified.rows == 0


# -- searches ------------------------------------------------------------------------------------------------------------

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11"]
SEARCH = {"strategy": BFS(b=3, k=8), "verifier": "lm_value"}
OF_GAME24 = {
    "random_attention": RandomAttention(budget=24, recent=4),
    "streaming": Streaming(budget=24, recent=4),
    "snapkv": SnapKV(budget=24, recent=4),
    "arborkv": ArborKV(tail=2, sinks=0),
}


def shape(result):
    return result.path, [
        (n.parent, n.branch, n.text, n.tokens, n.count, n.pruned, n.score, n.exact) for n in result.tree
    ]


@pytest.fixture(scope="module")
def trees():
    with load_engine() as engine:
        return {puzzle: shape(solve("game24", puzzle, engine=engine, **SEARCH)) for puzzle in PUZZLES}


@pytest.mark.parametrize("policy", OF_GAME24)
def test_a_search_finds_the_same_tree(trees, policy):
    with load_engine(compress=OF_GAME24[policy], lossless=Lossless(horizon=8)) as engine:
        outcomes = list(solve_many("game24", PUZZLES, engine=engine, concurrency=3, **SEARCH))
        engine.check_integrity()
        assert [s for s in engine.cache.segments() if s.pins or s.handles] == []
    assert {outcome.problem: shape(outcome.result) for outcome in outcomes} == trees
    verified = [outcome.result.ledger.verified for outcome in outcomes]
    assert all(v.drafted == v.accepted + v.rejected > 0 for v in verified)


async def test_a_search_in_little_room_finds_the_same_tree(trees):
    compress = OF_GAME24["arborkv"]
    with load_engine(kv_budget=120 * 6144, compress=compress, lossless=Lossless(horizon=8)) as engine:
        found = await asyncio.gather(*(asolve("game24", puzzle, engine=engine, **SEARCH) for puzzle in PUZZLES[:2]))
        engine.check_integrity()
        assert engine.cache.residency.pool.peak <= 120 * 6144 // engine.bytes_per_token
    assert [shape(result) for result in found] == [trees[puzzle] for puzzle in PUZZLES[:2]]
