"""Attention stats for eviction: the attention of later rows to a thought, compared with an independent computation."""

import pytest
import torch

from rksc_tot import load_engine, solve
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.attention.plan import KeySet
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.policies.eviction.rsbcm import RSBCM
from rksc_tot.strategies import BFS
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import byte_tokenizer, llama, mistral
from tests.engine.requests import LABELS, ask

PROMPT = "steps " + "4 5 6 10 " * 12 + "\n"  # long enough to be shared by a group
QUESTION = "try 1+2 2+3 so"


def attention(model, ids):
    """Probabilities [L, Hq, Q, N] of a plain pass."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False)
    return torch.stack(out.attentions)[:, 0].double()


@pytest.mark.parametrize("make", [llama, mistral])
async def test_the_share_of_a_thought_is_the_attention_of_later_rows_to_it(make):
    tokenizer = build_tokenizer()
    with TransformersEngine(
        make(len(tokenizer)), tokenizer, eviction=RSBCM(attention_weight=1.0), pack=False
    ) as engine:
        account = Account()
        root = engine.open(PROMPT, account)
        await engine.generate([ask(root, k=1, max_tokens=1, stop=())], account)
        first = engine.extend(root, "10 - 4 = 6\n")
        second = engine.extend(root, "10 + 4 = 14\n")
        await engine.label([LabelRequest(h, QUESTION, LABELS) for h in (first, second)], account)
        shares = {h: engine.forward.arena.attention_stats.share(h.segment.kv.slots) for h in (first, second)}
        question = tokenizer.encode(QUESTION)
        paths = {h: h.tokens for h in shares}
        spans = {h: (h.segment.start, h.segment.end) for h in shares}
        for handle, share in shares.items():
            seen = attention(engine.model, paths[handle] + question)
            start, end = spans[handle]
            paid = seen[..., start:, start:end].sum()
            looks = (seen[..., start:, start:end] > 0).sum((0, 1, 2)).max()
            assert share == pytest.approx(float(paid / looks), rel=1e-3)
            assert share > 0


def test_attention_stats_change_no_text_and_are_collected_only_with_a_weight():
    problem, strategy = "4 5 6 10", BFS(b=2, k=5)
    with load_engine() as engine:
        assert engine.forward.arena.attention_stats is None
        plain = solve("game24", problem, engine=engine, strategy=strategy)
    with load_engine(eviction=RSBCM(attention_weight=2.0)) as engine:
        heeded = solve("game24", problem, engine=engine, strategy=strategy)
    with load_engine(eviction=RSBCM(attention_weight=2.0), kv_budget=plain.ledger.peak_kv_bytes // 2) as engine:
        tight = solve("game24", problem, engine=engine, strategy=strategy)
        assert tight.ledger.evicted_tokens > 0
        engine.check_integrity()
    for other in (heeded, tight):
        assert [n.text for n in other.tree] == [n.text for n in plain.tree]


def test_a_route_without_attention_stats_is_refused(monkeypatch, fresh_probe):
    whole = KeySet.bias  # without the window it is wrong, so the probe takes the other route
    monkeypatch.setattr(KeySet, "bias", lambda self, window, *rest: whole(self, None, *rest))
    tokenizer = byte_tokenizer()
    with pytest.raises(ConfigError, match="needs attention stats, which are not available for slow"):
        TransformersEngine(mistral(len(tokenizer)), tokenizer, name="slow", eviction=RSBCM(attention_weight=1.0))
