"""Tree decoding equals plain forward passes on both routes, by model family; broken attention is noticed."""

from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.quality.exactness import SHAPE, families, refused, tree_difference
from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import KeySet
from rksc_tot.engine.model.capability_check import probe

TOLERANCE = 1e-4


def build(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def probed(config):
    return probe(build(config), Arena(1 << 30))


@cache
def probed_family(family):
    return probed(families()[family])


@pytest.mark.parametrize("route", ["fast", "mask"])
@pytest.mark.parametrize("family", families())
def test_a_ragged_tree_with_a_rollback_equals_fresh_passes(family, route):
    forward, capabilities = probed_family(family)
    assert capabilities.route == "fast"
    assert tree_difference(forward, route, seed=1, size=3) <= TOLERANCE


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_a_forgotten_window_would_be_noticed(family, monkeypatch):
    forward, _ = probed(families()[family])
    whole = KeySet.bias
    monkeypatch.setattr(KeySet, "bias", lambda self, window, *rest: whole(self, None, *rest))
    assert tree_difference(forward, "fast", seed=1, size=3) > 10 * TOLERANCE
    assert probed(families()[family])[1].route == "mask"  # the probe sees it, too


def test_a_forgotten_softcap_would_be_noticed(monkeypatch):
    config = families()["gemma2"]
    config.attn_logit_softcapping = 1.0
    forward, _ = probed(config)
    assert tree_difference(forward, "fast", seed=1, size=3) <= TOLERANCE
    monkeypatch.setattr("rksc_tot.engine.attention.tree_attention._cap", lambda scores, softcap: scores)
    assert tree_difference(forward, "fast", seed=1, size=3) > 10 * TOLERANCE


@pytest.mark.parametrize("family", refused())
def test_a_family_that_cannot_branch_is_refused_with_the_reason(family, capsys):
    with pytest.raises(UnsupportedModel, match=r"sequential state|does not decode a tree"):
        probed(refused()[family])


@pytest.mark.parametrize("vocabulary", [16, 61, 256, 1021])
def test_the_probe_uses_different_branches_for_any_vocabulary(vocabulary):
    _, capabilities = probed(LlamaConfig(**{**SHAPE, "vocab_size": vocabulary}))
    assert capabilities.route == "fast"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_paths_end_before_rope_changes_with_length(kind):
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "original_max_position_embeddings": 64, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    _, capabilities = probed(LlamaConfig(**SHAPE, rope_parameters=rope))
    assert capabilities.context == 64
    assert "changes with length" in capabilities.notes[0]


def test_attention_sinks_are_part_of_the_softmax():
    from transformers import GptOssConfig

    config = GptOssConfig(
        **SHAPE, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    forward, capabilities = probed(config)
    assert capabilities.route == "fast"
    assert tree_difference(forward, "fast", seed=0, size=3) <= TOLERANCE
