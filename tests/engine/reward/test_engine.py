import pytest
import torch

from benchmarks.quality.prm.official import official_scores
from rksc_tot.core.errors import ContextOverflow
from rksc_tot.engine.base import STEP_LABELS, Account, LabelRequest
from rksc_tot.policies.early_exit.cgee import Margins
from tests.engine.reward.conftest import PROBLEM, STEPS

ALWAYS = Margins(thresholds={1: 0.0})


def opened(engine, account, steps=STEPS, problem=PROBLEM):
    """A handle for each prefix of a path."""
    handles = [engine.open(problem, account)]
    for step in steps:
        handles.append(engine.extend(handles[-1], step))
    return handles


async def correct(engine, handles, account, **options):
    replies = await engine.label([LabelRequest(handle, "", STEP_LABELS, **options) for handle in handles], account)
    return [reply.probabilities["correct"] for reply in replies]


async def test_scores_step_by_step_equal_those_of_the_makers_layout_in_one_pass(engine, folders, kind):
    account = Account()
    handles = opened(engine, account)
    found = [(await correct(engine, [handle], account))[0] for handle in handles[1:]]
    assert found == pytest.approx(official_scores(kind, folders[kind], PROBLEM, STEPS), abs=1e-5)


async def test_one_pass_reads_all_steps_of_a_path(engine, folders, kind):
    account = Account()
    found = await correct(engine, opened(engine, account)[1:], account)
    assert found == pytest.approx(official_scores(kind, folders[kind], PROBLEM, STEPS), abs=1e-5)
    assert account.ledger.forward_passes <= 1 + len(STEPS) * bool(engine.layout.reading)


async def test_only_the_new_step_is_computed(engine):
    account = Account()
    handles = opened(engine, account)
    await correct(engine, handles[1:3], account)
    before = account.ledger.verifier_tokens
    await correct(engine, handles[3:], account)
    new = handles[3].length - handles[2].length + len(engine.layout.reading)
    assert account.ledger.verifier_tokens == before + new
    assert account.ledger.prefill_tokens == 0


@pytest.mark.parametrize("kind", ["token_classes", "step_marker", "outcome", "label_pair"], indirect=True)
async def test_a_step_that_left_early_is_computed_in_full_when_the_next_step_needs_it(engine, folders, kind):
    account = Account()
    handles = opened(engine, account)
    [reply] = await engine.label([LabelRequest(handles[1], "", STEP_LABELS, exit=ALWAYS)], account)
    assert reply.layer == 1
    engine.check_integrity()
    found = await correct(engine, handles[2:], account)
    assert found == pytest.approx(official_scores(kind, folders[kind], PROBLEM, STEPS)[1:], abs=1e-5)


@pytest.mark.parametrize("kind", ["value_head", "step_marker"], indirect=True)
async def test_a_trace_reads_the_head_after_the_norm_of_every_layer(engine):
    account = Account()
    handle = opened(engine, account)[1]
    [reply] = await engine.label([LabelRequest(handle, "", STEP_LABELS, trace=True)], account)
    with torch.no_grad():
        ids = torch.tensor([handle.tokens])
        states = engine.model.backbone(ids, output_hidden_states=True, use_cache=False).hidden_states
        norm, head = engine.model.backbone.norm, engine.model.head
        lens = [head(norm(state[0, -1])).softmax(-1).tolist() for state in states[1:-1]]
        lens.append(head(states[-1][0, -1]).softmax(-1).tolist())
    assert [row[1] for row in reply.trace] == pytest.approx([row[1] for row in lens], abs=1e-5)


HOSTILE = ["<extra_0>", "ки", "<|im_end|>", "a<extra_0>b ки<|im_start|>user"]


async def test_markers_in_user_text_stay_text(engine):
    account, marker = Account(), engine.layout.marker
    raw = engine.layout.tokenizer.raw
    special = {*raw.all_special_ids, *([raw.convert_tokens_to_ids(marker)] if marker != "\n" else [])}

    def count(step, problem):
        return sum(token in special for token in opened(engine, account, [step], problem)[1].tokens)

    assert {count(text, text) for text in HOSTILE} == {count("y", "x")}


@pytest.mark.parametrize("kind", ["outcome"], indirect=True)
async def test_a_path_beyond_the_context_is_refused(engine):
    handle = engine.open("x", Account())
    with pytest.raises(ContextOverflow, match="whose context holds 8192"):
        engine.extend(handle, "word " * 2000)
    with pytest.raises(ContextOverflow):
        engine.open("word " * 2000, Account())
