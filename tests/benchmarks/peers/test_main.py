"""All peers grow the same tree, compute no more rows than their sharing needs, and get equal probabilities."""

import asyncio
import dataclasses
import re

import pytest

from benchmarks.common.baselines import LABELS
from benchmarks.peers.lineup import Ours
from benchmarks.peers.main import QUICK, UnequalWork, figures, missing, rounds_of
from benchmarks.peers.search import PeerTally, search
from benchmarks.peers.subject import made_up, random_text
from benchmarks.peers.transformers import PAGE, ContinuousBatching, Generate
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.engine.tokenization.text import TextTokenizer

SHAPE = dataclasses.replace(QUICK, prompt=40, question=5, new=4)
NODES = 4 + 2 * 4
PATHS = 4 * (SHAPE.prompt + SHAPE.new) + 8 * (SHAPE.prompt + 2 * SHAPE.new)  # tokens of all nodes' paths
PROMPT = "prompt"


@pytest.fixture
def subject(tmp_path):
    return made_up("tiny", tmp_path, SHAPE.question)


@pytest.fixture
def text(subject):
    return random_text(subject.tokenizer, SHAPE.prompt, PROMPT)


def test_a_text_has_the_given_number_of_tokens_and_no_label(subject, text):
    ids = TextTokenizer(subject.tokenizer).encode(text)
    assert len(ids) == SHAPE.prompt
    every = random_text(subject.tokenizer, 20 * subject.tokenizer.vocab_size, PROMPT).split()
    assert len(set(every)) > 400
    assert not set(every) & set(LABELS)
    assert random_text(subject.tokenizer, SHAPE.prompt, "another") != text


def test_a_tokenizer_that_joins_words_is_refused(subject, text):
    class Joining:
        vocab_size = subject.tokenizer.vocab_size
        all_special_tokens, added_tokens_decoder = (), {}

        def decode(self, ids, **options):
            return subject.tokenizer.decode(ids, **options)

        def encode(self, text, **options):
            return subject.tokenizer.encode(text, **options)[: 2 if text.count(" ") > 1 else 1]

    with pytest.raises(UnsupportedModel, match="at its spaces"):
        random_text(Joining(), 3, PROMPT)


def test_ours_computes_every_token_once(subject, text):
    ours = Ours(subject)
    with ours.engine:
        tally = ours(text, SHAPE)
        again = ours(text, SHAPE)
    assert tally.shape == PeerTally.expected(SHAPE).shape
    assert tally.prefilled == SHAPE.prompt + NODES * (1 + SHAPE.question)  # a thought's last token, and the question
    assert again.prefilled == tally.prefilled  # cold again
    assert 0 < tally.expanding + tally.scoring <= tally.seconds


def test_generate_computes_every_path_for_every_branch_and_question(subject, text):
    tally = search(Generate(subject.model), subject.problem(text), SHAPE)
    assert tally.shape == PeerTally.expected(SHAPE).shape
    grown = 4 * SHAPE.prompt + 8 * (SHAPE.prompt + SHAPE.new)
    assert tally.prefilled == grown + PATHS + NODES * SHAPE.question


def test_continuous_batching_shares_all_whole_pages(subject, text):
    with ContinuousBatching(subject.model) as peer:
        tally = search(peer, subject.problem(text), SHAPE)
        other = random_text(subject.tokenizer, SHAPE.prompt, "another")
        again = search(peer, subject.problem(other), SHAPE)
    assert tally.shape == again.shape == PeerTally.expected(SHAPE).shape

    def unshared(length):  # what is computed of a path that has been written: its last token had not been
        return length - (length - 1) // PAGE * PAGE

    first, second = SHAPE.prompt + SHAPE.new, SHAPE.prompt + 2 * SHAPE.new
    parting = 4 - 1  # each branch computes the last token of its node's path for itself
    grown = SHAPE.prompt + parting + 2 * (unshared(first) + parting)
    assert tally.prefilled == grown + 4 * unshared(first) + 8 * unshared(second) + NODES * SHAPE.question
    assert again.prefilled == tally.prefilled  # of other prompts nothing is found


def test_generate_and_the_engine_read_the_same_probability(subject, text):
    problem = subject.problem(text)
    [[value, _]] = Generate(subject.model).value([[problem.prompt, problem.prompt[::-1]]], problem)
    ours = Ours(subject)
    with ours.engine:
        account = Account()
        asked = LabelRequest(ours.engine.open(text, account), subject.question, LABELS)
        [reply] = asyncio.run(ours.engine.label([asked], account))
    assert value == pytest.approx(reply.probabilities[LABELS[0]], abs=1e-5)


def test_a_peer_with_less_work_is_an_error():
    def lazy(prompt, shape):
        tally = PeerTally.expected(shape)
        tally.sampled -= 1
        return tally

    with pytest.raises(UnequalWork, match="lazy grew"):
        rounds_of({"lazy": lazy}, SHAPE, 1, 1, str)


def test_rounds_run_peers_in_rotating_order_on_new_prompts():
    calls = []

    def peer(name):
        def one(prompt, shape):
            calls.append((name, prompt))
            return PeerTally.expected(shape)

        return one

    rounds_of({name: peer(name) for name in "abc"}, SHAPE, 3, 2, str)
    names = "".join(name for name, _ in calls)
    assert re.findall("...", names) == ["abc", "abc", "bca", "bca", "cab", "cab"]
    assert len({prompt for _, prompt in calls}) == 6


def test_ratios_are_figures_of_peers_over_ours():
    def tallies(seconds, prefilled):
        return [[PeerTally(seconds=seconds, prefilled=prefilled, sampled=7) for _ in range(2)]]

    found = figures({"ours": tallies(2.0, 10), "peer": tallies(6.0, 80)})
    assert found["peer.time_ratio"] == found["peer.time_ratio.low"] == found["peer.time_ratio.high"] == 3.0
    assert found["peer.prefill_ratio"] == 8.0
    assert found["peer.sampled"] == found["ours.sampled"] == 7


def test_an_absent_peer_has_null_figures_and_a_reason():
    assert dict(missing({"vllm": "it is not here"})) == {
        "vllm.time_ratio": None, "vllm.prefill_ratio": None, "vllm.reason": "it is not here",
    }  # fmt: skip
