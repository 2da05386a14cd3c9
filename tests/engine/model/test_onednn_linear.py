"""Packed linear layers equal stock layers up to rounding, and the model does not change."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.quality.exactness import families, tree_difference
from rksc_tot.cache.arena import Arena
from rksc_tot.engine.model.capability_check import probe
from rksc_tot.engine.model.onednn_linear import OneDNNLinear, OneDNNMatmul, padded_rows, worth_packing


def build(family):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(families()[family], dtype=torch.float32).eval()


def kinds(model):
    return [type(module) for module in model.modules()]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gemma2", "gpt2"])  # with and without biases
def test_a_tree_on_packed_layers_equals_plain_passes_on_stock_ones(family):
    forward, capabilities = probe(build(family), Arena(1 << 30), packed=True)
    assert capabilities.route == "fast"
    assert capabilities.layers
    assert forward.packed
    assert OneDNNLinear in kinds(forward.model)
    assert tree_difference(forward, "fast", seed=1, size=3) <= 1e-4


def test_reference_passes_never_use_packed_layers():
    forward, _ = probe(build("llama"), Arena(1 << 30), packed=True)
    plain = forward.plain([5, 6, 7])
    stock, _ = probe(build("llama"), Arena(1 << 30))
    assert torch.equal(plain, stock.plain([5, 6, 7]))
    assert OneDNNLinear in kinds(forward.model)


def test_a_layer_with_a_hook_is_not_packed():
    model = build("llama")
    seen = []
    hooked = model.model.layers[0].mlp.up_proj
    hooked.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    forward, _ = probe(model, Arena(1 << 30), packed=True)
    assert type(forward.model.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert type(forward.model.model.layers[1].mlp.up_proj) is OneDNNLinear
    assert forward.linear == "partly packed"
    assert seen


def test_float16_is_never_packed():
    model = build("llama").to(torch.float16)
    assert not worth_packing(model)
    forward, _ = probe(model, Arena(1 << 30), packed=True)
    assert kinds(forward.model) == kinds(model)
    assert forward.linear == "stock"


@pytest.mark.parametrize("computes", [True, False])
def test_bfloat16_is_packed_where_the_processor_computes_in_it(monkeypatch, computes):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: computes)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    model = build("llama").to(torch.bfloat16)
    assert worth_packing(model) == computes
    forward, capabilities = probe(model, Arena(1 << 30), packed=True)
    assert (OneDNNLinear in kinds(forward.model)) == computes
    assert capabilities.route == "fast"


def alone(layer):
    return OneDNNLinear(layer, OneDNNMatmul([layer]), slice(None))


@pytest.mark.parametrize("bias", [False, True])
def test_layers_with_the_same_input_are_one_product_with_the_same_bits(bias):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(48, width, bias=bias) for width in (48, 16, 16)]
    product = OneDNNMatmul(layers)
    first = [0, 48, 64, 80]
    joined = [OneDNNLinear(layer, product, slice(a, b)) for layer, a, b in zip(layers, first, first[1:], strict=False)]
    with torch.inference_mode():
        for rows in (torch.randn(3, 48), torch.randn(1, 5, 48)):
            for layer, packed in zip(layers, joined, strict=True):
                assert torch.equal(packed(rows), alone(layer)(rows))
        one, other = torch.randn(2, 48), torch.randn(2, 48)
        joined[0](one)  # an unfinished product leaves no result for the next input
        assert torch.equal(joined[1](other), alone(layers[1])(other))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_layers_with_the_same_input_are_found_by_a_pass(family):
    forward, _ = probe(build(family), Arena(1 << 30), packed=True)
    layer = forward.model.model.layers[0]
    assert layer.self_attn.q_proj._product is layer.self_attn.k_proj._product is layer.self_attn.v_proj._product
    assert layer.mlp.gate_proj._product is layer.mlp.up_proj._product
    assert layer.mlp.down_proj._product is not layer.mlp.up_proj._product is not layer.self_attn.o_proj._product


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(160, 80), (576, 192), (1536, 576)])
def test_bits_of_a_row_do_not_depend_on_the_other_rows(dtype, inputs, outputs):
    if dtype == torch.bfloat16 and not torch.cpu._is_avx512_bf16_supported():
        pytest.skip("this processor does not compute in bfloat16")
    torch.manual_seed(0)
    packed = alone(torch.nn.Linear(inputs, outputs, dtype=dtype))
    rows = torch.randn(40, inputs, dtype=dtype)
    with torch.inference_mode():
        together = packed(rows)
        for count in (1, 2, 3, 5, 8, 17):
            assert torch.equal(packed(rows[:count]), together[:count])
        assert torch.equal(packed(rows[None, :1]), together[None, :1])
        assert torch.equal(packed(rows[0]), together[0])


def test_row_counts_are_padded_to_few_numbers_by_an_eighth_or_three_rows_at_most():
    padded = {rows: padded_rows(rows) for rows in range(1, 4097)}
    assert all(rows <= more <= max(rows + 3, rows * 9 // 8) for rows, more in padded.items())
    assert all(padded_rows(more) == more for more in padded.values())
    assert min(padded.values()) > 1  # a lone row is added up in another order
    assert len({more for rows, more in padded.items() if rows <= 2048}) <= 64


@pytest.mark.parametrize("shape", [(5, 16), (1, 5, 16), (1, 0, 16), (16,)])
def test_products_only_have_padded_numbers_of_rows(shape, monkeypatch):
    asked = []
    product = torch.ops.mkldnn._linear_pointwise
    packed = alone(torch.nn.Linear(16, 8))
    monkeypatch.setattr(
        torch.ops.mkldnn, "_linear_pointwise", lambda rows, *a: asked.append(len(rows)) or product(rows, *a)
    )
    with torch.inference_mode():
        out = packed(torch.randn(*shape))
    assert out.shape == (*shape[:-1], 8)
    assert asked == [padded_rows(torch.Size(shape[:-1]).numel())]
