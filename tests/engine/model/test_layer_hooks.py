"""Rows that leave a pass do not change other rows; the lens equals a model that is cut off after the layer."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.quality.exactness import families
from rksc_tot.cache.arena import Arena
from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.model.capability_check import probe
from rksc_tot.engine.model.logit_lens import find_lens, first
from rksc_tot.policies.eviction.rsbcm import RSBCM

TOLERANCE = 1e-4
LABELS = [[5, 9], [11], [17]]


def probed(config):
    torch.manual_seed(0)
    return probe(AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval(), Arena(1 << 30))


def every_family():
    import transformers

    small = {"vocab_size": 120, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0,
             "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.2}  # fmt: skip
    return families() | {
        "cohere (scaled logits)": transformers.CohereConfig(**small, intermediate_size=128, logit_scale=0.5),
        "granite (divided logits)": transformers.GraniteConfig(**small, intermediate_size=128, logits_scaling=3.0),
        "opt (biased norms)": transformers.OPTConfig(
            **{**small, "init_std": 0.2}, ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=200
        ),
    }


class Leaving:
    """A layer hook by which given rows leave after given layers."""

    def __init__(self, when):
        self.when = when

    def after(self, layer, look):
        return self.when.get(layer, ())


@pytest.mark.parametrize("route", ["fast", "mask"])
@pytest.mark.parametrize("family", every_family())
def test_rows_that_leave_do_not_change_the_others(family, route):
    forward, capabilities = probed(every_family()[family])
    assert capabilities.layers == forward.depth
    forward.take(route)
    rng = random.Random(3)
    text = [rng.randrange(3, 119) for _ in range(40)]
    tree = PrefixTree(SlotPool(400), RSBCM())
    trunk = tree.walk(tree.origin, text)
    slots = tree.residency.pool.allocate(40)
    tree.residency.store(trunk, slots)
    forward.run(forward.plan([Block(trunk.lineage(), 0, text, slots)]), 400)
    tips, blocks, rows = [], [], []
    for count in (9, 1, 6, 3, 9, 12):
        tip = tree.walk(trunk, [rng.randrange(3, 119) for _ in range(count)])
        slots = tree.residency.pool.allocate(count)
        tree.residency.store(tip, slots)
        tips.append(tip)
        rows.append(range(sum(map(len, rows)), sum(map(len, rows)) + count))
        blocks.append(Block(tip.lineage(), 40, tip.tokens, slots))
    stay, partly = (1, 3), 4  # of block 4 the first four rows stay: a path's last tokens before a question
    for n in stay:
        blocks[n].logits_at = [len(blocks[n].tokens) - 1]
    blocks[partly].logits_at = [3]
    when = {1: [*rows[0], *rows[partly][4:]], forward.depth - 1: [*rows[2], *rows[5]]}
    logits = forward.run(forward.plan(blocks), 400, [Leaving(when)])
    paths = [text + tips[n].tokens for n in stay] + [text + tips[partly].tokens[:4]]
    for got, path in zip(logits, paths, strict=True):
        assert float((got - forward.plain(path)[-1]).abs().max()) <= TOLERANCE
    kept = tree.walk(trunk, tips[partly].tokens[:4])  # and what comes after rows that stayed is exact, too
    end = tree.walk(kept, [7, 8])
    tree.residency.store(end, tree.residency.pool.allocate(2))
    block = Block(end.lineage(), 44, [7, 8], end.kv.slots, [1])
    [got] = forward.run(forward.plan([block]), 400)
    assert float((got - forward.plain([*paths[2], 7, 8])[-1]).abs().max()) <= TOLERANCE
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in forward.model.modules())


@pytest.mark.parametrize("family", every_family())
@torch.inference_mode()
def test_the_lens_equals_a_model_cut_off_at_that_layer(family):
    text = list(range(20, 44))
    for layer in (1, 2):
        forward, _ = probed(every_family()[family])
        forward.take("mask")
        model, lens = forward.model, forward.lens
        states = model(input_ids=torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states
        read = lens.probabilities(states[layer][0, -1:], LABELS)[0]
        decoder = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        del decoder[layer:]
        model.config.get_text_config().num_hidden_layers = layer
        cut = model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1]
        expected = torch.stack([cut[ids].double().logsumexp(-1) for ids in LABELS]).softmax(-1)
        torch.testing.assert_close(read, expected, atol=1e-5, rtol=0)


def test_the_last_layer_is_not_normed_twice():
    forward, _ = probed(families()["llama"])
    forward.take("mask")
    lens = find_lens(forward.original, list(range(3, 15)))
    kept = []
    hook = lens.layers[-1].register_forward_hook(lambda m, a, out: kept.append(first(out)))
    logits = forward.plain(list(range(3, 15)))
    hook.remove()
    torch.testing.assert_close(lens.logits(kept[0][0], slice(None)), logits, atol=1e-4, rtol=0)


def test_a_model_with_more_than_norm_and_embedding_has_no_early_exit():
    config = families()["llama"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.lm_head.register_forward_hook(lambda module, args, out: out.sin() * 9)
    forward, capabilities = probe(model, Arena(1 << 30))
    assert capabilities.layers == 0
    assert "norm and output embedding do not give the model's logits" in forward.no_lens
    assert forward.no_lens in capabilities.notes


def test_a_pass_ends_when_all_rows_have_left():
    forward, _ = probed(families()["llama"])
    ran = []
    layers = enumerate(forward.lens.layers)
    hooks = [layer.register_forward_hook(lambda m, a, o, n=n: ran.append(n)) for n, layer in layers]
    block = Block([], 0, [5, 6, 7], [0, 1, 2])
    logits = forward.run(forward.plan([block]), 3, [Leaving({2: range(3)})])
    for hook in hooks:
        hook.remove()
    assert ran == [0, 1]
    assert logits.numel() == 0
