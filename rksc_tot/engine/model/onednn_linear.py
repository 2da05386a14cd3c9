"""Linear layers on the CPU by oneDNN, with weights packed in oneDNN's layout.

In float32, torch uses MKL for these products. MKL's result for a row depends on the number of rows, and on an AMD processor MKL
took twice the time of oneDNN. In bfloat16, torch uses oneDNN but repacks the weights for every product, which costs a third of
the time when rows are few. Layers with the same input (such as query, key and value projections) become one product. A packed
layer keeps a copy of its weight, so linear weights take twice their memory. Only the engine's copy of the model has packed layers
(:mod:`rksc_tot.engine.model.model_copy`).

oneDNN compiles and caches code for every number of rows: 0.3 to 1 MiB and 2 ms each, for up to 1024 shapes in each of two
caches. To bound that memory, rows are padded to one of some 60 numbers (:func:`padded_rows`).

The bits of a row of a packed layer do not depend on the other rows: observed for 2 to 256 rows in both dtypes. A single row with
many inputs is summed in another order, but a product never has a single row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_BYTES = 4 << 30
"""Largest size of linear weights that are packed by default."""
LEAST_STEP, MOST_STEP = 4, 64
"""Step between padded numbers of rows."""


class OneDNNLinear(nn.Module):
    """Replaces one of several linear layers with the same input. All of them are computed as one product."""

    def __init__(self, stock: nn.Linear, product: OneDNNMatmul, place: slice) -> None:
        super().__init__()
        self.weight, self.bias = stock.weight, stock.bias
        self.in_features, self.out_features = stock.in_features, stock.out_features
        self._product = product
        self._place = place

    def forward(self, input: Tensor) -> Tensor:
        """``input [..., in]`` to ``[..., out]``."""
        return self._product(input, self._place)


class OneDNNMatmul:
    """The product of one input with the packed weights of one or more layers; kept until each layer has taken its part."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weights = [layer.weight.detach() for layer in layers]
        found: list[Any] = [layer.bias for layer in layers]
        biases: list[Tensor] = [bias for bias in found if bias is not None]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(
            torch.cat(weights) if len(weights) > 1 else weights[0], None
        )
        self._bias = torch.cat([bias.detach() for bias in biases]) if biases else None
        self._features = layers[0].in_features
        self._layers = len(layers)
        self._input: Tensor | None = None
        self._output: Tensor | None = None
        self._waiting = 0  # layers that have not taken their part

    def __call__(self, input: Tensor, place: slice) -> Tensor:
        """The part of one layer."""
        if self._layers == 1:
            return self._compute(input)
        if input is not self._input or self._output is None:
            self._input, self._output, self._waiting = input, self._compute(input), self._layers
        output = self._output
        self._waiting -= 1
        if not self._waiting:
            self._input = self._output = None
        return output[..., place]

    def _compute(self, input: Tensor) -> Tensor:
        count = input.numel() // self._features
        rows = input.reshape(count, self._features)
        if missing := padded_rows(count) - count:
            rows = F.pad(rows, (0, 0, 0, missing))
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self._bias, "none", [], "")
        return out[:count].view(*input.shape[:-1], out.shape[-1])


def padded_rows(rows: int) -> int:
    """The padded number of rows: at most an eighth more than ``rows``, or 3 more."""
    step = min(max(LEAST_STEP, 1 << max(0, (rows - 1).bit_length() - 4)), MOST_STEP)
    return -(-rows // step) * step


class OneDNNWeights:
    """The packed linear layers of a model. Weights are read at construction.

    Attributes
    ----------
    layers
        Number of packed linear layers.
    left
        Number of other linear layers.
    complete
        Whether all modules with a weight matrix are packed, except for embeddings.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: list[tuple[nn.Module, str, OneDNNLinear]] = []
        packed: set[nn.Module] = set()
        for together in _by_input(model):
            layers = [layer for _, _, layer in together]
            product, first = OneDNNMatmul(layers), 0
            packed.update(layers)
            for parent, name, layer in together:
                place = slice(first, first + layer.out_features)
                self._places.append((parent, name, OneDNNLinear(layer, product, place)))
                first = place.stop
        self.layers = len(packed)
        self.left = sum(isinstance(module, nn.Linear) and module not in packed for module in model.modules())
        self.complete = all(
            module in packed or isinstance(module, nn.Embedding) or not _has_matrix(module)
            for module in model.modules()
        )

    def put_in_place(self) -> None:
        """Replace the stock layers by the packed ones."""
        for parent, name, packed in self._places:
            setattr(parent, name, packed)


def _has_matrix(module: nn.Module) -> bool:
    """Whether a module itself has a weight matrix, also one packed by another library."""
    matrices = [t for t in (*module.parameters(False), *module.buffers(False)) if t.dim() > 1 and t.dtype != torch.bool]
    return bool(matrices) or hasattr(module, "in_features")


Place = tuple[nn.Module, str, nn.Linear]
"""Parent module, attribute name, layer."""


def _by_input(model: nn.Module) -> list[list[Place]]:
    """The layers that can be packed, grouped: consecutive layers of one module with the same input tensor are one group."""
    places = {
        layer: (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and _can_pack(layer)
    }
    seen: list[tuple[nn.Linear, Tensor]] = []
    hooks = [layer.register_forward_pre_hook(lambda layer, args: seen.append((layer, args[0]))) for layer in places]
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([[0, 1]]), use_cache=False)
    except Exception:  # a foreign model may raise anything: then each layer is a group
        seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
    found: list[list[Place]] = []
    before: Tensor | None = None
    for layer, input in seen:
        place = places.pop(layer, None)
        if place is None:  # a layer that is used more than once is a group
            before = None
            continue
        alike = before is input and found[-1][-1][0] is place[0]
        if alike and (found[-1][-1][2].bias is None) == (layer.bias is None):
            found[-1].append(place)
        else:
            found.append([place])
        before = input
    return found + [[place] for place in places.values()]


def worth_packing(model: nn.Module) -> bool:
    """Whether layers are packed by default: some can be packed, and their weights are at most :data:`MOST_BYTES`.

    The answer depends on the machine and the model, not on a timing, so that equal searches give equal numbers.
    """
    stock = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear) and _can_pack(layer)]
    return 0 < sum(weight.numel() * weight.element_size() for weight in stock) <= MOST_BYTES


def _can_pack(layer: nn.Linear) -> bool:
    """Whether a layer is a plain linear layer on the CPU: no quantized weights, parametrization, wrapper or hook."""
    weight = layer.weight
    return (
        type(layer) is nn.Linear  # a parametrized layer has another class
        and all(
            type(t) in (Tensor, nn.Parameter)
            and (t.layout, t.device.type, t.dtype) == (torch.strided, "cpu", weight.dtype)
            for t in layer._parameters.values()
            if t is not None
        )
        and torch.backends.mkldnn.is_available()
        and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and computes_bfloat16()))
        and "forward" not in vars(layer)  # a wrapper replaced forward, e.g. to fetch weights
        and not (layer._forward_hooks or layer._forward_pre_hooks)  # a hook needs the calls of this module
    )


def computes_bfloat16() -> bool:
    """Whether this processor has bfloat16 products in hardware."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
