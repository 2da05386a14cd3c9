"""Questions that leave a pass early: their readings, and no effect on other rows."""

import asyncio
from dataclasses import dataclass

import pytest
import torch

from rksc_tot.core.errors import ConfigError, EngineError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.requests import LABELS, PROMPT, ask, texts

QUESTION = "try 1+2 2+3 so"
LAYERS = 3


@pytest.fixture
def engine():
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer), LAYERS), tokenizer, name="tiny") as engine:
        yield engine
        engine.check_integrity()


@pytest.fixture
def byte_engine():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer), LAYERS), tokenizer, name="bytes") as engine:
        yield engine
        engine.check_integrity()


@dataclass(frozen=True)
class At:
    """A rule that exits after a layer in any case; ``every``: reads all layers up to it."""

    layer: int
    every: bool = False

    def checks(self, layer):
        return layer == self.layer or (self.every and layer < self.layer)

    def decided(self, seen):
        return seen[-1][0] == self.layer


def requests(handles, exit=None, trace=False):
    return [LabelRequest(handle, QUESTION, LABELS, exit=exit, trace=trace) for handle in handles]


async def thoughts(engine, account, k=6):
    root = engine.open(PROMPT, account)
    [found] = await engine.generate([ask(root, k=k)], account)
    return root, [completion.handle for completion in found]


def resident(engine):
    """The KV of all resident tokens, by path."""
    engine.check_integrity()
    found = {}
    for segment in engine.cache.segments():
        path = tuple(t for s in segment.lineage() for t in s.tokens)
        keys = [engine.forward.arena.keys[n][:, segment.kv.slots].clone() for n in sorted(engine.forward.arena.keys)]
        found[path] = torch.stack(keys)
    return found


@pytest.mark.parametrize("layer", [1, 2])
async def test_an_early_exit_reads_the_values_of_the_full_trace_at_that_layer(engine, layer):
    account = Account()
    _, handles = await thoughts(engine, account)
    traces = await engine.label(requests(handles, trace=True), account)
    exits = await engine.label(requests(handles, At(layer)), account)
    for traced, exited in zip(traces, exits, strict=True):
        assert exited.layer == layer
        assert exited.outside is None
        assert list(exited.probabilities.values()) == pytest.approx(traced.trace[layer - 1], abs=1e-5)


async def test_a_trace_ends_with_the_answer_of_a_plain_question(engine):
    account = Account()
    _, handles = await thoughts(engine, account)
    for plain, traced in zip(
        await engine.label(requests(handles), account),
        await engine.label(requests(handles, trace=True), account),
        strict=True,
    ):
        assert len(traced.trace) == LAYERS
        assert traced.layer == LAYERS
        assert traced.probabilities == pytest.approx(plain.probabilities, abs=1e-5)
        assert traced.trace[-1] == pytest.approx(list(plain.probabilities.values()), abs=1e-5)
        assert traced.outside == pytest.approx(plain.outside, abs=1e-5)


async def test_a_rule_that_never_decides_runs_all_layers(engine):
    account = Account()
    _, handles = await thoughts(engine, account)
    plain = await engine.label(requests(handles), account)
    for full, exited in zip(plain, await engine.label(requests(handles, At(99)), account), strict=True):
        assert exited.layer == LAYERS
        assert exited.probabilities == pytest.approx(full.probabilities, abs=1e-5)
    assert account.ledger.layer_exit.acted == 0
    assert account.ledger.layers_saved == 0


async def test_an_early_exit_leaves_the_cache_as_a_full_pass_does(engine):
    account = Account()
    _, handles = await thoughts(engine, account)
    await engine.label(requests(handles), account)  # gives every thought its last row
    before = resident(engine)
    await engine.label(requests(handles, At(1)), account)
    after = resident(engine)
    assert before.keys() == after.keys()
    for path, kept in before.items():
        assert torch.equal(kept, after[path])


async def test_the_last_row_of_a_thought_runs_through_all_layers_when_its_question_leaves():
    """The row becomes an ancestor: texts after it are those without any question."""
    tokenizer = build_tokenizer()
    written = []
    for exit in (None, At(1)):
        with TransformersEngine(llama(len(tokenizer), LAYERS), tokenizer) as engine:
            account = Account()
            _, handles = await thoughts(engine, account)
            if exit:
                await engine.label(requests(handles, exit), account)
            found = await engine.generate([ask(h, n, k=3) for n, h in enumerate(handles)], account)
            written.append([texts(completions) for completions in found])
            assert account.ledger.prefill_tokens == account.ledger.distinct_tokens
            engine.check_integrity()
    assert written[0] == written[1]


async def test_questions_leave_a_pass_while_other_rows_decode():
    tokenizer = build_tokenizer()
    written = []
    for others in (False, True):
        with TransformersEngine(llama(len(tokenizer), LAYERS), tokenizer) as engine:
            account = Account()
            root, handles = await thoughts(engine, account)
            generation = engine.generate([ask(root, "other", k=5, max_tokens=12, stop=())], account)
            if others:
                found, *_ = await asyncio.gather(
                    generation, *(engine.label(requests(handles, At(layer)), account) for layer in (1, 2, 99))
                )
            else:
                found = await generation
            written.append([texts(completions) for completions in found])
            engine.check_integrity()
    assert written[0] == written[1]


async def test_equal_questions_may_exit_early_and_run_in_full_at_once(engine):
    account = Account()
    _, handles = await thoughts(engine, account)
    plain = await engine.label(requests(handles), account)
    early, full, traced = await asyncio.gather(
        engine.label(requests(handles, At(1)), account),
        engine.label(requests(handles), account),
        engine.label(requests(handles, trace=True), account),
    )
    for a, b, c, d in zip(plain, early, full, traced, strict=True):
        assert b.layer == 1
        assert c.probabilities == pytest.approx(a.probabilities, abs=1e-5)
        assert len(d.trace) == LAYERS
        assert d.probabilities == pytest.approx(a.probabilities, abs=1e-5)
    engine.check_integrity()


async def test_a_question_with_the_beginning_of_one_that_left_is_computed_again(engine):
    account = Account()
    _, handles = await thoughts(engine, account)
    longer = [LabelRequest(h, QUESTION + " 1*2 so", LABELS) for h in handles]
    plain = await engine.label(longer, account)
    _, again = await asyncio.gather(engine.label(requests(handles, At(1)), account), engine.label(longer, account))
    for a, b in zip(plain, again, strict=True):
        assert b.probabilities == pytest.approx(a.probabilities, abs=1e-5)


async def test_a_question_in_chunks_may_exit():
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer), LAYERS), tokenizer, max_batch_tokens=3) as engine:
        account = Account()
        _, handles = await thoughts(engine, account)
        traces = await engine.label(requests(handles, trace=True), account)
        for traced, exited in zip(traces, await engine.label(requests(handles, At(2)), account), strict=True):
            assert list(exited.probabilities.values()) == pytest.approx(traced.trace[1], abs=1e-5)
        engine.check_integrity()


async def test_the_ledger_counts_the_layers_that_ran(engine):
    account = Account()
    _, handles = await thoughts(engine, account)
    await engine.label(requests(handles), account)
    await engine.label(requests(handles, At(1)), account)
    ledger = account.ledger
    assert ledger.verifier_layers == len(handles) * (LAYERS + 1)
    assert ledger.verifier_layers_full == len(handles) * 2 * LAYERS
    assert ledger.layer_exit.acted == len(handles)


async def test_nan_states_are_an_error_and_never_an_exit():
    tokenizer = build_tokenizer()
    with TransformersEngine(llama(len(tokenizer), LAYERS), tokenizer, pack=False) as engine:
        account = Account()
        _, handles = await thoughts(engine, account)
        down = engine.forward.model.model.layers[0].mlp.down_proj
        down.register_forward_hook(lambda module, args, out: out * float("nan"))
        with pytest.raises(EngineError, match="NaN"):
            await engine.label(requests(handles, At(1)), account)
        engine.check_integrity()


async def test_a_model_without_reads_between_layers_refuses_exits_with_the_reason():
    tokenizer = build_tokenizer()
    model = llama(len(tokenizer), LAYERS)
    model.lm_head.register_forward_hook(lambda module, args, out: out.sin() * 9)
    with TransformersEngine(model, tokenizer, name="odd") as engine:
        account = Account()
        _, handles = await thoughts(engine, account)
        assert engine.layers == 0
        assert (await engine.label(requests(handles[:1]), account))[0].trace is None
        with pytest.raises(ConfigError, match="odd allows no reads between its layers: no logit lens"):
            await engine.label(requests(handles[:1], At(1)), account)


async def test_labels_of_several_tokens_exit_by_their_first_token_and_are_read_in_full_after_the_last_layer(
    byte_engine,
):
    account, labels = Account(), ("quick", "maybe so", "x")
    root, other = byte_engine.open("say", account), byte_engine.open("no", account)

    def requests(**how):
        return [LabelRequest(handle, " so\n", labels, **how) for handle in (root, other)]

    plain = await byte_engine.label(requests(), account)
    traced = await byte_engine.label(requests(trace=True), account)
    early = await byte_engine.label(requests(exit=At(2, every=True)), account)
    never = await byte_engine.label(requests(exit=At(99)), account)
    letters = await byte_engine.label(
        [LabelRequest(request.handle, " so\n", ("q", "m", "x"), trace=True) for request in requests()], account
    )
    for whole, trace, exited, full, letter in zip(plain, traced, early, never, letters, strict=True):
        assert [*exited.probabilities.values()] == pytest.approx(trace.trace[1], abs=1e-5)
        assert (exited.layer, exited.outside) == (2, None)
        assert full.probabilities == pytest.approx(whole.probabilities, abs=1e-5)
        assert full.layer is None  # not an answer of a layer
        assert len(trace.trace) == LAYERS
        for n in range(LAYERS - 1):
            assert trace.trace[n] == pytest.approx(letter.trace[n], abs=1e-5)
        assert trace.trace[-1] == pytest.approx([*whole.probabilities.values()], abs=1e-5)
        assert trace.trace[-1] != pytest.approx(letter.trace[-1], abs=1e-3)
        assert trace.outside == pytest.approx(whole.outside, abs=1e-5)


@pytest.mark.parametrize("how", [{"exit": At(1)}, {"trace": True}], ids=["exit", "trace"])
async def test_labels_with_equal_first_tokens_are_refused_before_any_pass(byte_engine, how):
    account = Account()
    root = byte_engine.open("say", account)
    with pytest.raises(ConfigError, match="'quick' and 'quiet' begin with the same token"):
        await byte_engine.label([LabelRequest(root, " so\n", ("quick", "quiet"), **how)], account)
    assert byte_engine.usage.passes == 0
