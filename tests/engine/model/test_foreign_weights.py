"""Only plain weights on the CPU are packed, not weights that another library computes or stores."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM

from benchmarks.quality.exactness import families
from rksc_tot.cache.arena import Arena
from rksc_tot.engine.model.capability_check import probe
from rksc_tot.engine.model.onednn_linear import OneDNNLinear, OneDNNWeights, worth_packing


class Int8Weight(torch.Tensor):
    """A weight of 8-bit integers with a scale for each row, with only the operations of a linear layer."""

    @staticmethod
    def __new__(cls, quantized, scales, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, quantized.shape, dtype=dtype)

    def __init__(self, quantized, scales, dtype):
        self.quantized, self.scales = quantized, scales

    @classmethod
    def of(cls, weight):
        scales = weight.detach().abs().amax(1, keepdim=True) / 127
        return cls((weight.detach() / scales).round().to(torch.int8), scales, weight.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].quantized, args[0].scales, args[0].dtype)
        if function is torch.ops.aten.linear.default:
            return function(*(a.quantized * a.scales if isinstance(a, cls) else a for a in args))
        raise NotImplementedError(f"{function} is not known")


def build(family="llama"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(families()[family], dtype=torch.float32).eval()


def quantize(layer):
    layer.weight = nn.Parameter(Int8Weight.of(layer.weight), requires_grad=False)


def quantize_bias(layer):
    layer.bias = nn.Parameter(Int8Weight.of(torch.ones(layer.out_features, 1)), requires_grad=False)


def parametrized(layer):
    parametrize.register_parametrization(layer, "weight", nn.Identity())


def wrapped(layer):
    layer.forward = layer.forward


def hooked(layer):
    layer.register_forward_pre_hook(lambda module, args: None)


def elsewhere(layer):
    layer.weight = nn.Parameter(layer.weight.to("meta"))


def sparse(layer):
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse())


FOREIGN = [quantize, quantize_bias, parametrized, wrapped, hooked, elsewhere, sparse]


@pytest.mark.parametrize("change", FOREIGN)
def test_a_layer_whose_weight_is_not_plain_is_not_packed(change):
    layers = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8)])
    change(layers[0])
    packing = OneDNNWeights(layers)
    packing.put_in_place()
    assert not isinstance(layers[0], OneDNNLinear)
    assert isinstance(layers[1], OneDNNLinear)
    assert (packing.layers, packing.left, packing.complete) == (1, 1, False)


def test_a_model_whose_weights_are_all_foreign_is_not_worth_packing():
    layers = nn.ModuleList([nn.Linear(16, 8)])
    assert worth_packing(layers)
    quantize(layers[0])
    assert not worth_packing(layers)


@pytest.mark.parametrize("packed", [None, True, False])
def test_a_quantized_model_is_served_by_its_own_layers(packed):
    model = build()
    for layer in list(model.modules()):
        if isinstance(layer, nn.Linear) and layer is not model.lm_head:
            quantize(layer)
    forward, capabilities = probe(model, Arena(1 << 30), packed=packed)
    assert capabilities.route == "fast"
    assert type(forward.model.model.layers[0].mlp.up_proj) is nn.Linear
    assert not capabilities.batch_invariant


def test_a_module_packed_by_another_library_does_not_count_as_packed():
    class Packed(nn.Module):
        in_features = 16

    assert not OneDNNWeights(nn.ModuleList([nn.Linear(16, 8), Packed()])).complete
