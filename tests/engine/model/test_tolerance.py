"""In half precision a model's own noise sets the tolerance: right plans pass, and broken plans do not."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.quality.exactness import families, refused
from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import KeySet
from rksc_tot.engine.model.capability_check import examine, probe
from rksc_tot.engine.model.forward import Forward
from rksc_tot.engine.model.hf_compat import ArenaCache
from rksc_tot.engine.model.tolerance import FACTOR, SINGLE, Tolerance

HALF = [torch.bfloat16, torch.float16]
TINY = ["llama", "gemma2", "gemma3", "gpt2"]


def build(config, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


class WrongPositions(Forward):
    """The tokens of branches are one position too far."""

    def plan(self, blocks):
        plan = super().plan(blocks)
        if blocks[0].start:
            plan.positions += 1
        return plan


class OneSlotForAll(Forward):
    """The first tokens of all branches are stored in one slot."""

    def plan(self, blocks):
        plan = super().plan(blocks)
        if len(blocks) > 1:
            for block in blocks[1:]:
                block.slots[0] = blocks[0].slots[0]
            return super().plan(blocks)
        return plan


def see_next_keys(monkeypatch):
    """On the fast route every row sees one key more than it may."""
    right = KeySet._bias
    monkeypatch.setattr(KeySet, "_bias", lambda self, window, rows, dtype: right(self, window, rows + 1, dtype))


def see_sibling_keys(monkeypatch):
    """On the mask route every row sees the first new row of the pass, which is of another branch."""
    right = ArenaCache.__init__

    def leaky(self, *of):
        right(self, *of)
        if self._before:
            self.visible[1:, self._before] = True

    monkeypatch.setattr(ArenaCache, "__init__", leaky)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", families())
def test_a_right_plan_is_accepted_in_half_precision(family, dtype):
    _, capabilities = probe(build(families()[family], dtype), Arena(1 << 30), packed=None)
    assert capabilities.route == "fast"
    assert capabilities.layers
    assert 0 < capabilities.difference <= capabilities.tolerance < 0.1


def refusal(forward):
    with pytest.raises(UnsupportedModel) as caught:
        examine(forward)
    return str(caught.value)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("broken", [WrongPositions, OneSlotForAll])
def test_a_broken_plan_is_refused_in_half_precision(broken, family, dtype):
    said = refusal(broken(build(families()[family], dtype), Arena(1 << 30), packed=True))
    assert "fast route: logits differ by" in said
    assert "mask route: logits differ by" in said
    assert "the model's own passes differ by" in said
    assert "try float32" in said
    assert "sliding-window" not in said


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", TINY)
def test_a_leaked_mask_is_noticed_on_each_route_in_half_precision(family, dtype, monkeypatch):
    see_next_keys(monkeypatch)
    forward, capabilities = probe(build(families()[family], dtype), Arena(1 << 30))
    assert capabilities.route == "mask"
    assert "fast route: logits differ by" in capabilities.notes[0]
    see_sibling_keys(monkeypatch)
    assert "try float32" in refusal(forward)


@pytest.mark.parametrize("dtype", HALF)
def test_a_model_whose_noise_hides_a_wrong_token_is_refused_with_a_hint_to_float32(dtype):
    model = build(families()["llama"], dtype)
    for layer in model.model.layers:  # nothing of the context reaches a token
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    with pytest.raises(UnsupportedModel, match=r"own passes differ by \d+\.\d+%, .*a wrong token by \d+") as caught:
        probe(model, Arena(1 << 30))
    assert "try float32" in str(caught.value)
    assert "sliding-window" not in str(caught.value)


@pytest.mark.parametrize("dtype", HALF)
def test_a_model_whose_cache_contradicts_its_plain_passes_is_refused(dtype):
    model = build(families()["llama"], dtype)
    model.lm_head.register_forward_hook(lambda layer, given, logits: logits * (1 + 0.2 * (logits.shape[1] == 1)))
    with pytest.raises(UnsupportedModel, match=r"own cache does not give .* differ by \d+\.\d+%, of which rounding"):
        probe(model, Arena(1 << 30))


def test_the_error_names_attention_when_rounding_is_not_the_cause():
    bloom = refused()["bloom (ALiBi)"]
    with pytest.raises(UnsupportedModel, match="full or sliding-window attention"):
        probe(build(bloom, torch.float32), Arena(1 << 30))


def test_float32_must_agree_to_five_digits():
    _, capabilities = probe(build(families()["llama"], torch.float32), Arena(1 << 30))
    assert capabilities.tolerance < 2e-4
    assert capabilities.difference <= capabilities.tolerance
    assert Tolerance(SINGLE, single=True).difference([torch.eye(3, 5)], [torch.zeros(3, 5)]) == 1


def test_the_difference_in_half_precision_is_over_all_rows():
    plain = [torch.ones(3, 4), torch.ones(1, 4)]
    found = [plain[0], torch.full((1, 4), 2.0)]
    assert Tolerance(FACTOR * 0.01, single=False, noise=0.01).difference(found, plain) == 0.5


def test_nan_is_never_within_the_tolerance():
    for single in (True, False):
        found = Tolerance(1.0, single=single).difference([torch.full((1, 2), torch.nan)], [torch.ones(1, 2)])
        assert not found <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nan_in_some_rows_of_the_embeddings_is_named(dtype):
    model = build(families()["llama"], dtype)
    with torch.no_grad():
        model.get_input_embeddings().weight[1::2] = torch.nan
    with pytest.raises(
        UnsupportedModel, match=r"^NaN or infinite numbers are in the weights model.embed_tokens.weight"
    ):
        probe(model, Arena(1 << 30))
