"""Generation under a constraint: every text that ends has the form, and nothing else depends on the constraint."""

import asyncio
import json
import random
import re
from dataclasses import replace

import jsonschema
import pytest
import torch

from rksc_tot import ConstraintError, MockEngine, grammar, json_schema, regex
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, Sampling
from rksc_tot.engine.jobs.random_streams import Streams
from rksc_tot.engine.jobs.sampler import Draws, Logits, sample
from rksc_tot.policies.compression.lossless import Lossless
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.kv.lossless import POLICIES
from tests.engine.requests import ask
from tests.engine.tokenization.test_written import byte_fallback

SCHEMA = {
    "type": "object",
    "properties": {"step": {"type": "string", "maxLength": 4}, "left": {"type": "array", "items": {"enum": [1, "é"]}}},
    "required": ["step"],
    "additionalProperties": False,
}
FORMS = [
    json_schema(SCHEMA),
    regex("(yes|no)+!?"),
    regex("[a-c]{2,9}\n"),
    regex("[é€]{1,3}"),
    grammar('start: NUM (("+"|"-") NUM)*\nNUM: /[0-9]{1,2}/'),
]
MATCHES = {FORMS[4]: r"\d{1,2}([+-]\d{1,2})*"}
SAMPLINGS = (Sampling(), Sampling(temperature=0), Sampling(temperature=1.5, top_k=4, top_p=0.9))
ENDED = ("stop", "eos")


def check(form, text):
    """Whether a text has a form."""
    if form.kind == "json_schema":
        jsonschema.validate(json.loads(text), json.loads(form.source))
        return True
    return re.fullmatch(MATCHES.get(form, form.source), text) is not None


def naive(engine, request, stream):
    """One branch by plain forward passes: tokens without a closing, both kinds of log-probabilities, and the finish."""
    state = engine._grammars.matcher(request.constraint, request.max_tokens)
    tokens, own, inside = [], [], []
    while True:
        logits = engine.forward.plain(request.handle.tokens + tokens)[-1:]
        draws = Draws([0], stream[len(tokens)], request.sampling, [state.allowed])
        [[token]], [[logprob]] = sample(Logits(logits), [draws])
        allowed = logits[0].double()[torch.from_numpy(state.allowed)]
        own.append(logprob)
        inside.append(float(logits[0, token].double() - allowed.logsumexp(-1)))
        if token in engine._eos:
            return tokens, own, inside, "eos"
        tokens.append(token)
        state.push(token)
        if state.complete or len(tokens) == request.max_tokens:
            return tokens, own, inside, "stop" if state.complete else "length"


@pytest.fixture(scope="module")
def engine():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="bytes", pack=True) as engine:
        yield engine
        engine.check_integrity()


async def replies(engine, forms, prompt="say", max_tokens=30, **options):
    account = Account()
    root = engine.open(prompt, account)
    found = await engine.generate(
        [ask(root, "c", max_tokens=max_tokens, constraint=form, **options) for form in forms], account
    )
    for completion in (completion for reply in found for completion in reply):
        engine.release(completion.handle)
    engine.release(root)
    return found


def plain(reply):
    return [(c.text, c.tokens, c.branches, c.finish, c.logprobs, c.constrained_logprobs) for c in reply]


@pytest.mark.parametrize("sampling", SAMPLINGS)
async def test_every_branch_is_what_plain_passes_and_a_mask_give(engine, sampling):
    account = Account()
    root = engine.open("say", account)
    requests = [ask(root, "c", 2, 20, sampling, ("\n",), constraint=form) for form in FORMS]
    for request, reply in zip(requests, await engine.generate(requests, account), strict=True):
        for completion in reply:
            for branch in completion.branches:
                tokens, own, inside, finish = naive(engine, request, Streams([request.streams[branch]]))
                assert completion.finish == finish
                assert list(completion.tokens[: len(tokens)]) == tokens
                kept = min(len(own), len(completion.tokens))
                assert completion.logprobs[:kept] == pytest.approx(own[:kept], abs=1e-4)
                assert completion.constrained_logprobs[:kept] == pytest.approx(inside[:kept], abs=1e-4)
                assert len(completion.constrained_logprobs) == len(completion.logprobs) == len(completion.tokens)
            engine.release(completion.handle)
    engine.release(root)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), byte_fallback()], ids=["byte level", "byte fallback"])
def test_every_text_that_ends_has_its_form(tokenizer):
    ended = 0
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        for reply, form in zip(asyncio.run(replies(engine, FORMS, k=8, max_tokens=60)), FORMS, strict=True):
            for completion in reply:
                ended += completion.finish in ENDED
                assert completion.finish not in ENDED or check(form, completion.text)
    assert ended > 12


async def test_a_text_is_closed_by_the_stop_string_once(engine):
    """Closed texts end in the tokens that a stop string has, with the model's log-probabilities of them."""
    account = Account()
    root = engine.open("say", account)
    for form, closed in ((FORMS[0], "\n"), (FORMS[2], "")):
        [reply] = await engine.generate([ask(root, "c", 5, 60, constraint=form)], account)
        for completion in reply:
            if completion.finish == "stop":
                path = engine.tokenizer.decode(completion.tokens)
                assert path == completion.text + closed
                assert path.endswith("\n")
                assert not closed or completion.constrained_logprobs[-1] == completion.logprobs[-1] < 0
            engine.release(completion.handle)
    [reply] = await engine.generate([ask(root, "c", 5, 60, constraint=FORMS[0], keep_stop=False)], account)
    for completion in reply:
        assert engine.tokenizer.decode(completion.tokens) == completion.text
        engine.release(completion.handle)
    engine.release(root)


async def test_branches_do_not_depend_on_company(engine):
    """Constrained and plain requests for one path in one pass give what each gives alone, to the bit."""
    alone = {form: plain((await replies(engine, [form]))[0]) for form in (*FORMS, None)}
    order = random.Random(0).sample([*FORMS, None], len(FORMS) + 1)
    for form, reply in zip(order, await replies(engine, order), strict=True):
        assert plain(reply) == alone[form]
    few = await replies(engine, FORMS[:1], k=2)
    many = await replies(engine, FORMS[:1], k=6)
    texts = [{branch: c.text for c in found[0] for branch in c.branches} for found in (few, many)]
    assert texts[0] == {branch: texts[1][branch] for branch in (0, 1)}


@pytest.mark.parametrize("policy", ["streaming", "nonsense"])
def test_drafts_change_no_constrained_text(engine, policy):
    wanted = asyncio.run(replies(engine, FORMS))
    account = Account()

    async def drafted(other):
        root = other.open("say", account)
        return await other.generate([ask(root, "c", max_tokens=30, constraint=form) for form in FORMS], account)

    options = {"compress": POLICIES[policy], "lossless": Lossless(horizon=4), "pack": True}
    with TransformersEngine(engine.model, engine.tokenizer, name="bytes", **options) as other:
        found = asyncio.run(drafted(other))
    assert [plain(reply) for reply in found] == [plain(reply) for reply in wanted]
    assert account.ledger.verified.drafted > 20


@pytest.mark.parametrize("limit", [3, 7])
async def test_a_token_budget_cuts_texts_off_and_no_cut_text_counts_as_ended(engine, limit):
    account = Account(tokens_left=limit)
    root = engine.open("say", account)
    [reply] = await engine.generate([ask(root, "c", 4, 30, constraint=FORMS[0])], account)
    assert account.ledger.tokens_sampled == limit
    assert {completion.finish for completion in reply} == {"budget"}
    for completion in reply:
        engine.release(completion.handle)
    engine.release(root)


async def test_a_text_that_no_token_can_continue_ends_stuck():
    """The words of this model cannot spell the x."""
    from rksc_tot.tasks.game24.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as words:
        [reply] = await replies(words, [regex("1 [+] (2|x)|3 x")], "steps 4 5 6 10\n", k=24)
        assert {c.finish for c in reply} == {"stop", "stuck"}
        assert {c.text for c in reply if c.finish == "stop"} == {"1 + 2"}


async def test_a_proposal_takes_its_form_too(engine):
    account = Account()
    root = engine.open("say", account)
    [[completion]] = await engine.generate(
        [replace(ask(root, "c", 1, 60, constraint=FORMS[0]), suffix="\nsteps: ")], account
    )
    assert check(FORMS[0], completion.text)
    assert completion.handle is None
    engine.release(root)


@pytest.mark.parametrize("make", [lambda: MockEngine(lambda text, rng: "a\n")])
async def test_an_engine_that_cannot_constrain_refuses_in_a_sentence(make):
    with pytest.raises(ConstraintError, match="the mock engine writes no constrained thoughts"):
        await replies(make(), FORMS[:1])
