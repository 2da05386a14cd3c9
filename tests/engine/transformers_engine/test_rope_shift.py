"""Keys at other positions, on models of many families."""

import pytest
import torch
import transformers as t

from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.model import hf_compat as compat
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.transformers_engine.rope_shift import find_rotation
from tests.engine.conftest import SHAPE as SMALL

SHAPE = SMALL | {"num_hidden_layers": 3}


def families():
    window = {
        "head_dim": 16,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    }
    neox = {k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    return {
        "llama": t.LlamaConfig(vocab_size=90, **SHAPE),
        "qwen3": t.Qwen3Config(vocab_size=90, head_dim=16, **SHAPE),
        "neox_partial": t.GPTNeoXConfig(vocab_size=90, rotary_pct=0.5, **neox),
        "phi_partial": t.PhiConfig(vocab_size=90, **SHAPE),
        "gemma3_by_layer": t.Gemma3TextConfig(vocab_size=90, query_pre_attn_scalar=16, **{**SHAPE, **window}),
        "cohere_neighbours": t.CohereConfig(vocab_size=90, **SHAPE),
        "glm_partial_neighbours": t.GlmConfig(vocab_size=90, **{**SHAPE, "head_dim": 12}),
        "smollm3_some_layers": t.SmolLM3Config(vocab_size=90, no_rope_layers=[1, 1, 0], **SHAPE),
        "yarn": t.LlamaConfig(vocab_size=90, rope_parameters=yarn, **SHAPE),
    }


def forward_of(config, route):
    torch.manual_seed(0)
    model = t.AutoModelForCausalLM.from_config(config).float().eval()
    compat.register()
    forward = Forward(model, Arena(1 << 20))
    forward.take(route)
    return forward


@pytest.mark.parametrize("route", ["fast", "mask"])
@pytest.mark.parametrize("family", families())
def test_moved_keys_equal_keys_computed_there(family, route):
    forward = forward_of(families()[family], route)
    rotation = find_rotation(forward, [0, 1, 2], 3)
    source, target = torch.tensor([2, 90, 31]), torch.tensor([77, 8, 31])

    def alone(positions):
        plan = forward.plan([Block([], 0, [7 + 20 * n], [n], [0]) for n in range(3)])
        plan.positions = positions[None]
        forward.run(plan, 3)
        return [forward.arena.read(layer)[0][:, :3].clone() for layer in sorted(forward.arena.keys)]

    there = alone(target)
    moved = [rotation.move(layer, keys, source, target) for layer, keys in enumerate(alone(source))]
    for computed, keys in zip(there, moved, strict=True):
        assert torch.allclose(keys, computed, atol=1e-4)
    assert any(not torch.allclose(a, b, atol=1e-2) for a, b in zip(alone(source), there, strict=True))


@pytest.mark.parametrize("config", [
    t.GPT2Config(vocab_size=90, n_embd=48, n_layer=2, n_head=4, n_positions=256, initializer_range=0.2, bos_token_id=None,
                 eos_token_id=2),
    t.OPTConfig(vocab_size=90, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
                max_position_embeddings=256, word_embed_proj_dim=48, init_std=0.2),
])  # fmt: skip
def test_a_model_without_rotary_positions_is_refused_in_a_sentence(config):
    with pytest.raises(UnsupportedModel, match="rotary"):
        find_rotation(forward_of(config, "mask"), [0, 1, 2], 3)


def test_a_cache_whose_values_hold_positions_is_refused():
    """On the mask route the arena stores MLA's latent as keys, and its rotary key as values."""
    config = t.DeepseekV3Config(
        vocab_size=90, **{**SHAPE, "num_key_value_heads": 4}, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=32,
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="values"):
        find_rotation(forward_of(config, "mask"), [0, 1, 2], 3)
    assert find_rotation(forward_of(config, "fast"), [0, 1, 2], 3).difference < 1e-4
