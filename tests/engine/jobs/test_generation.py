"""Random programs over the engine against a naive loop: one plain forward pass a token, no cache, no sharing."""

import asyncio
import random

import pytest

from benchmarks.common.plain_labels import plain_labels
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import Draws, Logits, sample
from rksc_tot.engine.tokenization.find_stops import cut_at, find_end, leading_stops
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.written import written
from tests.engine.conftest import PER_TOKEN, byte_tokenizer, llama, mistral
from tests.seeds import seeds

SETTINGS = (
    Sampling(temperature=0),
    Sampling(temperature=0.7),
    Sampling(temperature=1.3, top_k=20),
    Sampling(temperature=1.0, top_p=0.8),
    Sampling(temperature=1.0, min_p=0.1),
)
LABELS = (("yes", "no"), ("quite", "quiet"), ("no", "nope", "not"))  # of one token, of several, one in another
QUESTIONS = (" so", " so\n", " so: ", " so?")
STOPS = ((), ("a",), ("e", "o", "\n"), ("ab", "b"), ("é",))


def naive(engine, path, request, stream):
    """The result of one branch: (text, whole tokens kept, finish)."""
    branch, tokens = written(TextTokenizer(engine.tokenizer), path), []
    while True:
        logits = engine.forward.plain(path + tokens)[-1:]
        [[token]], _ = sample(Logits(logits), [Draws([0], stream[len(tokens)], request.sampling)])
        begin = leading_stops(branch.text, request.stop) if request.skip_blank else 0
        if token == engine.tokenizer.eos_token_id:
            return branch.whole[begin:], tokens, "eos"
        tokens.append(token)
        searched = branch.push(token)
        begin = leading_stops(branch.text, request.stop) if request.skip_blank else 0
        if stop := find_end(branch.text, searched, request.stop, request.skip_blank):
            length = stop[1] if request.keep_stop else stop[0]
            return branch.text[begin : stop[0]], tokens[: cut_at(branch.ends, branch.text, length).kept], "stop"
        if len(tokens) == request.max_tokens:
            return branch.whole[begin:], tokens, "length"


async def play(engine, rng):
    """Grow a random tree beside random other requests; check every branch; release all handles."""
    account = Account()
    handles = [engine.open(text, account) for text in ("say", "say yes", "no.\n\nyes", "é")]
    for round in range(4):
        chosen = [rng.choice(handles) for _ in range(rng.randint(1, 4))]
        requests = [
            GenerateRequest(
                handle, stream_keys(range(rng.randint(1, 6)), round, i % 2), rng.choice(SETTINGS), rng.randint(1, 7),
                rng.choice(STOPS), rng.random() < 0.5, rng.random() < 0.5,
            )
            for i, handle in enumerate(chosen)
        ]  # fmt: skip
        asked = [
            LabelRequest(rng.choice(handles), rng.choice(QUESTIONS), rng.choice(LABELS))
            for _ in range(rng.randint(0, 3))
        ]
        found, scores = await asyncio.gather(engine.generate(requests, account), engine.label(asked, account))
        for request, completions in zip(requests, found, strict=True):
            path = request.handle.tokens
            for completion in completions:
                assert completion.handle.tokens == path + list(completion.tokens)
                for branch in completion.branches:
                    text, kept, finish = naive(engine, path, request, Streams([request.streams[branch]]))
                    assert (completion.text, completion.finish) == (text, finish)
                    assert list(completion.tokens[: len(kept)]) == kept
                handles.append(completion.handle)
        for request, score in zip(asked, scores, strict=True):
            shares, outside = plain_labels(
                lambda ids: engine.forward.plain(list(ids)).double().log_softmax(-1), engine.tokenizer,
                request.handle.tokens, request.question, request.labels, TextTokenizer(engine.tokenizer).continuation,
            )  # fmt: skip
            assert [*score.probabilities.values()] == pytest.approx(shares, abs=1e-4)
            assert score.outside == pytest.approx(outside, abs=1e-4)
        engine.check_integrity()
    assert account.ledger.prefill_tokens == account.ledger.distinct_tokens + account.ledger.recomputed_tokens
    for handle in handles:
        engine.release(handle)
    engine.clear()
    assert engine.usage.kv_bytes == 0


@pytest.mark.parametrize("make", [llama, mistral])
@pytest.mark.parametrize(("rows", "tokens"), [(2048, 10_000), (3, 10_000), (64, 60)])
@pytest.mark.parametrize("seed", seeds(1, 10))
async def test_a_random_program_gives_the_texts_of_a_naive_loop(make, rows, tokens, seed):
    tokenizer = byte_tokenizer()
    budget = tokens * PER_TOKEN
    with TransformersEngine(make(len(tokenizer)), tokenizer, max_batch_tokens=rows, kv_budget=budget) as engine:
        assert engine.capabilities.route == "fast"  # else the probe has hidden what is tested here
        await play(engine, random.Random(seed))
