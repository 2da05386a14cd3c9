"""An answer tells whether it was read from the full KV of the path. An audit always reads from full KV."""

import asyncio

import pytest
import torch
from torch import nn

from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest
from rksc_tot.engine.model.logit_lens import LogitLens
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.policies.early_exit.cgee import Margins
from tests.engine.attention.random_program import HOT, ONE_SET, PER_HEAD, unshadowed

LABELS = ("yes", "no")
POLICIES = {name: policy for name, policy in {**PER_HEAD, **ONE_SET}.items() if "arborkv" not in name}
WAYS = {
    "plain": {},
    "traced": {"trace": True},
    "may exit, does not": {"exit": Margins(thresholds={1: 1.0})},
    "exits": {"exit": Margins(thresholds={1: 0.0})},
}


def ask(handle, **how):
    return LabelRequest(handle, " ok", LABELS, **how)


async def reduced(engine, account):
    """The prompt, and ends of paths that a policy has compressed."""
    root = engine.open("say yes no", account)
    (found,) = await engine.generate([GenerateRequest(root, (1, 2, 3, 4), HOT, 40)], account)
    lineages = {completion.handle: completion.handle.segment.lineage() for completion in found}
    ends = [
        handle for handle, lineage in lineages.items() if any(segment.kv.present is not None for segment in lineage)
    ]
    assert len(ends) > 1
    return root, ends


def standing(engine, end):
    """A handle at the end of the same path."""
    with engine.engine_thread.books():
        place = engine.cache.walk(engine.cache.origin, end.tokens)
        engine.cache.hold(place)
    return KVHandle(engine.engine_thread, end.length, None, end.prompt_end, place=place)


@pytest.mark.parametrize(("policy", "way"), [
    pytest.param(policy, way, marks=() if (n + m) % 2 == 0 else pytest.mark.slow)
    for n, policy in enumerate(POLICIES) for m, way in enumerate(WAYS)
])  # fmt: skip
async def test_answers_from_compressed_kv_are_not_exact_and_audits_equal_a_full_path(policy, way):
    engine = unshadowed("llama", compress=POLICIES[policy])
    plain = unshadowed("llama")
    with engine, plain:
        account = Account()
        _, ends = await reduced(engine, account)
        ledger = account.ledger
        assert not any(reply.exact for reply in await engine.label([ask(end, **WAYS[way]) for end in ends], account))
        assert (ledger.scores.acted, ledger.compression.audit_rows) == (len(ends), 0)
        held, before = engine.cache.residency.pool.used, ledger.model_copy(deep=True)
        audit = await engine.label([ask(end, **WAYS[way], audit=True) for end in ends], account)
        whole = [standing(plain, end) for end in ends]
        assert audit == await plain.label([ask(handle, **WAYS[way]) for handle in whole], Account())
        assert all(reply.exact for reply in audit)
        shared = ends[0].prompt_end * (len(ends) - 1)  # the prompt is computed once for all of them
        assert ledger.compression.audit_rows == sum(end.length + 3 for end in ends) - shared
        booked = "verifier_tokens", "verifier_layers", "verifier_layers_full", "context_tokens", "scores", "layer_exit"
        for name in (*booked, "prefill_tokens", "recomputed_tokens", "distinct_tokens"):
            assert getattr(ledger, name) == getattr(before, name), name
        assert engine.cache.residency.pool.used == held  # they left nothing
        engine.check_integrity()


async def test_no_exit_rule_applies_to_inexact_kv():
    engine = unshadowed("llama", compress=PER_HEAD["random_attention"])
    with engine:
        account = Account()
        root, (end, *_) = await reduced(engine, account)
        requests = [ask(handle, **WAYS["exits"]) for handle in (root, end)]
        whole, less = await engine.label(requests, account)
        assert (whole.exact, whole.layer, less.exact, less.layer) == (True, 1, False, engine.layers)
        assert account.ledger.layer_exit.acted == 1
        await engine.rehydrate([end], account)
        (again,) = await engine.label(requests[1:], account)
        assert (again.exact, again.layer) == (True, 1)
        engine.check_integrity()


@pytest.mark.parametrize("way", WAYS)
async def test_answers_after_rehydration_are_exact_again(way):
    engine = unshadowed("llama", compress=PER_HEAD["random_attention"])
    with engine:
        account = Account()
        _, (end, *_) = await reduced(engine, account)
        assert await engine.rehydrate([end], account) == [True]
        (there,) = await engine.label([ask(end, **WAYS[way])], account)
        (audit,) = await engine.label([ask(end, **WAYS[way], audit=True)], account)
        assert there == audit
        assert there.exact
        assert account.ledger.scores.acted == 0


@pytest.mark.parametrize("audit", [False, True])
async def test_an_audit_and_a_plain_question_do_not_disturb_each_other(audit):
    engine = unshadowed("llama", compress=PER_HEAD["snapkv"])
    with engine:
        account = Account()
        root, ends = await reduced(engine, account)
        alone = [(await engine.label([ask(end, audit=audit)], account))[0] for end in ends]
        together = await engine.label(
            [ask(handle, audit=how) for handle in (root, *ends, *ends) for how in (audit, not audit, audit)], account
        )
        assert together[3::3] == together[5::3] == alone * 2
        engine.check_integrity()


async def test_an_audit_without_room_does_not_end_a_search():
    engine = unshadowed("llama", compress=PER_HEAD["random_attention"])
    with engine:
        account = Account()
        root, ends = await reduced(engine, account)
        account.kv_bytes = (account.kv_rows + 4) * engine.bytes_per_token
        assert await engine.label([ask(root)], account) != [None]
        assert await engine.label([ask(ends[0], audit=True)], account) == [None]
        assert not account.kv_short
        assert await engine.against_full(ends[:1], account) == [None]
        assert not account.kv_short
        engine.check_integrity()


@pytest.mark.parametrize("way", WAYS)
async def test_answers_from_kv_reused_by_a_prompt_variant_are_not_exact(byte_engine, way):
    engine, account = byte_engine, Account()
    problem = "A shed holds 7 rakes and 12 spades; 5 are lent out. "
    reference = engine.open(f"Solve: {problem}Answer", account)
    rule = PromptReuse(threshold=None, audit=0)
    borrower, verdict = await engine.open_variant(f"A longer question. {problem}Show it", reference, rule, account)
    assert verdict.kept
    own, taken = await engine.label([ask(handle, **WAYS[way]) for handle in (reference, borrower)], account)
    assert (own.exact, taken.exact, account.ledger.scores.acted) == (True, False, 1)


async def test_an_audit_is_exact_while_its_path_is_compressed():
    engine = unshadowed("llama", compress=ONE_SET["arborkv, lossy"], max_batch_tokens=8)
    plain = unshadowed("llama")
    with engine, plain:
        (end,) = [engine.open("say yes no no no yes yes no yes", Account())]
        asking = asyncio.create_task(engine.label([ask(end, audit=True)], Account()))
        while engine.usage.passes < 1:
            await asyncio.sleep(0)
        with engine.engine_thread.books():
            (job,) = engine.scheduler.jobs
            job.pause()  # as one is for which there is no room
            (above,) = [segment for segment in job.base.lineage() if segment.kv.slots]
            engine.cache.residency.compress(above, [0])
        assert await asking == await plain.label([ask(standing(plain, end))], Account())


@pytest.mark.parametrize("way", WAYS)
async def test_bits_of_an_answer_do_not_depend_on_other_requests(way):
    engine = unshadowed("llama")
    with engine:
        assert engine.numerics["batch_invariant"]
        handles = [engine.open(text, Account()) for text in ("say", "say yes no", "no: yes", "yes yes yes", "ok then")]
        alone = [(await engine.label([ask(handle, **WAYS[way])], Account()))[0] for handle in handles]
        assert await engine.label([ask(handle, **WAYS[way]) for handle in handles], Account()) == alone


async def test_audits_of_several_prompts_keep_the_ends_of_their_prompts():
    engine = unshadowed("llama", compress=PER_HEAD["snapkv"])
    text = "say yes no and yes and no, and yes again, or no, and so on and on"
    with engine:
        handles = [engine.open(text, Account())]
        handles += [engine.extend(engine.open(text[:cut], Account()), text[cut:]) for cut in (40, 48, 56)]
        assert len({tuple(handle.tokens) for handle in handles}) == 1
        assert len({handle.prompt_end for handle in handles}) == 4
        alone = [(await engine.label([ask(handle, audit=True)], Account()))[0] for handle in handles]
        assert len({reply.probabilities["yes"] for reply in alone}) > 1  # or this shows nothing
        assert await engine.label([ask(handle, audit=True) for handle in handles], Account()) == alone
        assert await engine.label([ask(handle, audit=True) for handle in handles[::-1]], Account()) == alone[::-1]


@pytest.mark.parametrize("passes", range(1, 6))
async def test_a_cancelled_audit_leaves_no_kv(passes):
    engine = unshadowed("llama", compress=PER_HEAD["random_attention"], max_batch_tokens=8)
    with engine:
        root = engine.open("say yes no", Account())
        handles = [engine.extend(root, text) for text in (" and yes and so on", " or no, or yes, or no")]
        asking = asyncio.create_task(engine.label([ask(handle, audit=True) for handle in handles], Account()))
        while engine.usage.passes < passes:
            await asyncio.sleep(0)
        assert engine.cache.residency.pool.used
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        engine.engine_thread.empty_inbox()
        assert engine.cache.residency.pool.used == 0
        engine.check_integrity()


@pytest.mark.parametrize("rows", [3, 64])
async def test_audits_end_first_when_an_account_is_full(rows):
    engine = unshadowed("llama", compress=PER_HEAD["random_attention"], max_batch_tokens=rows)
    with engine:
        account = Account(kv_bytes=28 * engine.bytes_per_token)
        root = engine.open("say yes no", account)
        work = [engine.generate([GenerateRequest(root, (1,), HOT, 20)], account)]
        audits = [engine.label([ask(root, audit=True)], account), engine.against_full([root], account)]
        [(found,)], *_ = await asyncio.gather(*work, *audits)
        assert found.finish in ("length", "eos", "stop")
        assert not account.kv_short


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_logits_of_a_few_tokens_equal_those_among_all_tokens(dtype):
    torch.manual_seed(0)
    head, hidden = nn.Linear(512, 90).to(dtype), torch.randn(7, 512).to(dtype)
    lens = LogitLens([], nn.Identity(), head, lambda logits: logits)
    with torch.inference_mode():
        few, every = lens.logits(hidden, [3, 80, 11]), lens.all_logits(hidden)[:, [3, 80, 11]]
        exact = nn.functional.linear(hidden.double(), head.weight.double(), head.bias.double())[:, [3, 80, 11]]
    assert few.dtype == dtype
    assert float((few - exact).abs().mean()) <= 1.5 * float((every - exact).abs().mean()) + 1e-6
