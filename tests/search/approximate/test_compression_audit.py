"""Audits of thoughts and scores on compressed KV."""

import asyncio
import random
from math import log

import pytest

from rksc_tot import RKSC, asolve, load_engine, solve, solve_many, stream
from rksc_tot.core.errors import CacheError
from rksc_tot.core.ledger import ApproximateScores, CompressedKV, Ledger, SharedKV
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.engine.base import Account, LabelRequest, LabelScores
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming
from rksc_tot.search.approximate.compression_audit import CompressionAudit
from rksc_tot.strategies import BFS

STREAMING = Streaming(budget=20, recent=4)
SEARCH = {"strategy": BFS(b=2, k=5)}
NARROW = {"strategy": BFS(b=2, k=3)}
CHAIN = {"strategy": BFS(b=1, k=8)}  # votes are then asked on what the candidates have in common
LABELS = ("yes", "no")
KNOWN = {}


def searched(*given, **options):
    """What a search found; each is searched once."""
    key = repr((given, options))
    if key not in KNOWN:
        KNOWN[key] = search(*given, **options)
    return KNOWN[key]


def search(audit, verifier="lm_value", compress=STREAMING, strategy=SEARCH):
    with load_engine(compress=compress) as engine:
        return solve("game24", "4 5 6 10", engine=engine, rksc=RKSC(audit=audit), verifier=verifier, **strategy)


# -- in a search -----------------------------------------------------------------------------------------------------------


def test_scores_read_from_compressed_kv_are_marked_counted_and_audited():
    result = searched(1.0)
    asked = [node for node in result.tree if node.score is not None]
    approximate = [node for node in asked if not node.score_exact]
    assert len(asked) > len(approximate) > 0
    row = result.ledger.scores
    assert (row.acted, row.audited) == (len(approximate), len(approximate))
    assert row.kl > 0
    assert result.ledger.compression.audited == sum(not node.exact for node in result.tree)


def test_an_audit_does_not_change_results():
    results = [searched(share) for share in (0.0, 0.03, 1.0)]
    assert results[0].tree == results[1].tree == results[2].tree
    ledgers = [result.ledger for result in results]
    assert ledgers[0].scores.audited == 0
    assert 1 <= ledgers[1].scores.audited < ledgers[2].scores.audited == ledgers[2].scores.acted
    assert len({ledger.scores.acted for ledger in ledgers}) == 1
    assert len({(ledger.verifier_tokens, ledger.verifier_calls, ledger.tokens_sampled) for ledger in ledgers}) == 1
    assert len({(ledger.context_tokens, ledger.context_computed, ledger.prefill_tokens) for ledger in ledgers}) == 1


def test_which_answers_are_audited_is_drawn_from_the_seed():
    first, again = searched(0.3), search(0.3)
    assert first.ledger.scores == again.ledger.scores
    assert 0 < first.ledger.scores.audited < first.ledger.scores.acted


@pytest.mark.parametrize("compress", [None, Streaming(budget=10**6)])
def test_without_compression_all_scores_are_exact_and_nothing_is_audited(compress):
    result = searched(1.0, compress=compress)
    assert all(node.score_exact for node in result.tree)
    assert result.ledger.scores.acted == result.ledger.scores.audited == result.ledger.compression.audit_rows == 0


@pytest.mark.parametrize("verifier", ["lm_vote", "likelihood", "random"])
def test_scores_of_other_verifiers_are_exact_on_exact_thoughts(verifier):
    result = searched(1.0, verifier, strategy=CHAIN if verifier == "lm_vote" else SEARCH)
    asked = [node for node in result.tree if node.score is not None]
    if verifier == "random":
        assert all(node.score_exact for node in asked)
    else:
        assert {node.score_exact for node in asked} == {True, False}
    if verifier == "likelihood":
        assert all(node.score_exact == node.exact for node in asked)
    assert result.ledger.scores.audited == result.ledger.scores.acted
    assert (result.ledger.scores.acted > 0) == (verifier == "lm_vote")


def test_the_event_says_whether_a_score_is_exact():
    with load_engine(compress=STREAMING) as engine:
        run = stream("game24", "4 5 6 10", engine=engine, verifier="lm_value", **SEARCH)
        told = {event.node: event.exact for event in run if event.kind == "scored"}
        assert told == {node.id: node.score_exact for node in run.result.tree if node.score is not None}
    assert set(told.values()) == {True, False}


def test_a_lossless_search_reads_all_scores_from_full_kv():
    with load_engine(compress=STREAMING, lossless=True) as engine:
        result = solve("game24", "4 5 6 10", engine=engine, verifier="lm_value", **SEARCH)
    assert result.ledger.scores.acted == 0
    assert all(node.score_exact for node in result.tree)


# -- searches on one engine -----------------------------------------------------------------------------------------------

LOSSY = {
    "random_attention": (RandomAttention(budget=8, recent=2), {}),
    "one set": (RandomAttention(budget=10, recent=2, sets="one", pin_prompt=False), {}),
    "snapkv": (SnapKV(budget=10, recent=2), {}),
    "streaming": (Streaming(budget=10, recent=2), {}),
    "arborkv": (ArborKV(rehydrate=False), {"kv_budget": "1MiB"}),
}


@pytest.mark.parametrize("policy", [
    pytest.param(name, marks=pytest.mark.slow if name in ("snapkv", "streaming") else ()) for name in LOSSY
])  # fmt: skip
def test_a_compressed_search_does_not_depend_on_other_searches(policy):
    compress, memory = LOSSY[policy]
    search = SEARCH if memory else NARROW  # of a narrow one all KV would fit
    with load_engine(compress=compress, **memory) as engine:
        first = solve("game24", "4 5 6 10", engine=engine, rksc=RKSC(audit=0.0), **search)
        assert first.ledger.compression.rows > 0
        engine.engine_thread.empty_inbox()
        assert engine.usage.kv_bytes == 0  # the KV of a search with lossy compression is dropped
        solve("game24", "4 5 6 10", engine=engine, seed=1, **search)
        again = solve("game24", "4 5 6 10", engine=engine, rksc=RKSC(audit=0.0), **search)
        assert again.tree == first.tree
        if not memory:  # there is room for all of them
            same = {"rksc": RKSC(audit=0.0), **search}
            for outcome in solve_many("game24", ["4 5 6 10"] * 2, engine=engine, concurrency=2, **same):
                assert outcome.result.tree == first.tree
        engine.engine_thread.empty_inbox()
        assert engine.usage.kv_bytes == 0
        engine.check_integrity()


@pytest.mark.parametrize("compress", [None, STREAMING])
def test_a_run_counts_the_problems_that_are_not_exact(compress):
    with load_engine(compress=compress) as engine:
        for _ in (run := solve_many("game24", ["4 5 6 10", "1 2 3 4"], engine=engine, **SEARCH)):
            pass
    assert run.tally.approximate == (0 if compress is None else 2)


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(compression=CompressedKV(rows=1)),
        Ledger(scores=ApproximateScores(acted=1)),
        Ledger(prompt_reuse=SharedKV(acted=1)),
    ],
)
def test_a_ledger_is_exact_without_thoughts_or_scores_on_approximate_kv(ledger):
    assert Ledger(compression=CompressedKV(acted=3, tokens=9)).exact  # made whole before anything was read on
    assert not ledger.exact


@pytest.mark.parametrize("lossless", [False, True])
async def test_compressed_searches_share_no_prompts(lossless):
    with load_engine(compress=STREAMING, lossless=lossless) as engine:
        one, two = (engine.open("4 5 6 10\n", Account()) for _ in range(2))
        assert (one.segment is two.segment) == lossless


@pytest.mark.parametrize("passes", [1, 3, 6])
async def test_a_cancelled_search_leaves_no_kv(passes):
    with load_engine(compress=STREAMING) as engine:
        searching = asyncio.create_task(asolve("game24", "4 5 6 10", engine=engine, **SEARCH))
        while engine.usage.passes < passes:
            await asyncio.sleep(0)
        searching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await searching
        engine.engine_thread.empty_inbox()
        assert engine.usage.kv_bytes == 0
        engine.check_integrity()


# -- alone -----------------------------------------------------------------------------------------------------------------


class Answers:
    """Answers each audit request with the given reply; raises it if it is a CacheError."""

    def __init__(self, *said):
        self.said, self.asked = list(said), []

    async def label(self, requests, account):
        assert all(request.audit for request in requests)
        self.asked += requests
        given = [self.said.pop(0) for _ in requests]
        for each in given:
            if isinstance(each, CacheError):
                raise each
        return [each and LabelScores(dict(zip(LABELS, each, strict=True)), 0.0) for each in given]

    async def against_full(self, handles, account):
        self.asked += handles
        return [self.said.pop(0) for _ in handles]


def auditor(audit, engine):
    def rng(*names):
        return random.Random(stream_key("a search", *names))

    warned, account = [], Account()
    return CompressionAudit(audit, engine, account, rng, lambda *told: warned.append(told)), account.ledger, warned


def reply(*probabilities, exact=False):
    return LabelScores(dict(zip(LABELS, probabilities, strict=True)), 0.0, exact=exact)


REQUEST = LabelRequest(object(), "?", LABELS)


async def test_flips_and_divergence_of_answers_add_up():
    engine = Answers((0.5, 0.5), (0.25, 0.75), None, (1.0, 0.0))
    reductions, ledger, warned = auditor(1.0, engine)
    got = [reply(0.5, 0.5), reply(0.75, 0.25), reply(0.9, 0.1), reply(0.25, 0.75), reply(0.9, 0.1, exact=True), None]
    await reductions.audit_scores([REQUEST] * 6, got)
    row = ledger.scores
    assert len(engine.asked) == 4  # neither what is exact nor what was not answered
    assert (row.audited, row.flips) == (3, 2)  # of one the deadline came first
    assert row.kl == pytest.approx(0.25 * log(1 / 3) + 0.75 * log(3) + log(4))
    assert warned == []  # too few to say anything


async def test_a_zero_probability_gives_a_finite_divergence():
    reductions, ledger, _ = auditor(1.0, Answers((0.5, 0.5)))
    await reductions.audit_scores([REQUEST], [reply(1.0, 0.0)])
    assert 300 < ledger.scores.kl < 400


async def test_a_warning_if_most_audited_answers_differ():
    reductions, _, warned = auditor(1.0, Answers(*[(0.9, 0.1)] * 5))
    await reductions.audit_scores([REQUEST] * 5, [reply(0.1, 0.9)] * 3 + [reply(0.9, 0.1)] * 2)
    [(topic, said)] = warned
    assert topic == "scores"
    assert said.startswith("3 of 5 audited answers to label questions differ from those on the full KV")


async def test_no_room_for_an_audit_is_a_warning_and_the_search_goes_on():
    reductions, ledger, warned = auditor(1.0, Answers(CacheError("full")))
    await reductions.audit_scores([REQUEST], [reply(0.5, 0.5)])
    assert ledger.scores.audited == 0
    assert [topic for topic, _ in warned] == ["audit"]


async def test_the_first_of_each_kind_is_audited_at_any_share_above_0():
    for share, wanted in ((1e-9, 1), (0.0, 0)):
        engine = Answers(*[(0.5, 0.5)] * 4)
        reductions, *_ = auditor(share, engine)
        for _ in range(3):
            await reductions.audit_scores([REQUEST] * 2, [reply(0.5, 0.5)] * 2)
        assert len(engine.asked) == wanted
        tree = ReasoningTree()
        nodes = [tree.add(tree.root if len(tree) else None, exact=False, branch=str(n)) for n in range(3)]
        for node in nodes:
            node._handle = object()
        engine.said = [(0.5, False)]
        await reductions.audit(nodes)
        assert len(engine.asked) == 2 * wanted


async def test_a_warning_if_most_audited_thoughts_differ():
    engine = Answers((0.1, True), (0.2, False), (0.3, False), None, (0.4, False))
    reductions, ledger, warned = auditor(1.0, engine)
    tree = ReasoningTree()
    nodes = [tree.add(tree.root if len(tree) else None, exact=n == 2, branch=str(n)) for n in range(7)]
    for node in nodes[:6]:
        node._handle = object()
    await reductions.audit(nodes)  # but for what is exact, and what was pruned meanwhile
    assert (ledger.compression.audited, ledger.compression.flips, ledger.compression.kl) == (4, 3, pytest.approx(1.0))
    [(topic, said)] = warned
    assert topic == "compression"
    assert said.startswith("after 3 of 4 audited thoughts")
