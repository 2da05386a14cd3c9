"""Linear layers on the CPU by oneDNN, with weights in its own layout.

In single precision torch hands such products to MKL, whose results for a row depend on how many rows there are, and which on a
processor that is not Intel's was seen to take twice the time of oneDNN. In bfloat16 torch does ask oneDNN, but has the weights
laid out anew for every product, which costs a third of the time when rows are few. Layers that read the same input (those of
queries, keys and values, say) become one product. A packed layer keeps a copy of its weight, so linear weights take their memory
twice. Packed layers stand in the engine's copy of the model only (:mod:`rksc_tot.engine.model.model_copy`).

oneDNN compiles code for every number of rows, and keeps it: 0.3 to 1 MiB and 2 ms each, for up to 1024 shapes in each of two
caches. So rows are padded to one of some 60 numbers, which bounds that memory (:func:`padded_rows`).

A row of a packed layer is the same to the last bit whatever the other rows are and how many: seen for 2 to 256 rows in both
dtypes. A single row with many inputs is added up in another order, but a product never has a single row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_BYTES = 4 << 30
"""Linear weights beyond this are not copied unless asked for."""
LEAST_STEP, MOST_STEP = 4, 64
"""Rows from one padded number to the next."""


class OneDNNLinear(nn.Module):
    """Stands for one of several linear layers that read the same input (or for one alone), and computes all of them at once."""

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
    """The product of one input with the packed weights of one or more layers; kept until each of them has had its part."""

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
        self._waiting = 0  # layers that have not had their part

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
    """The fewest rows, from this many on, for which oneDNN may compile code: at most an eighth more, or 3."""
    step = min(max(LEAST_STEP, 1 << max(0, (rows - 1).bit_length() - 4)), MOST_STEP)
    return -(-rows // step) * step


class OneDNNWeights:
    """The linear layers of a model that can be packed, and their packed twins. Weights are read when this is made.

    Attributes
    ----------
    layers
        How many linear layers are packed.
    left
        How many are not.
    complete
        Whether no other module of the model has a weight matrix, but for tables of embeddings.
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
        """Put the packed layers where the stock ones are."""
        for parent, name, packed in self._places:
            setattr(parent, name, packed)


def _has_matrix(module: nn.Module) -> bool:
    """Whether a module itself has a weight matrix, be it packed by another library."""
    matrices = [t for t in (*module.parameters(False), *module.buffers(False)) if t.dim() > 1 and t.dtype != torch.bool]
    return bool(matrices) or hasattr(module, "in_features")


Place = tuple[nn.Module, str, nn.Linear]
"""A layer, and under which name it hangs from which module."""


def _by_input(model: nn.Module) -> list[list[Place]]:
    """The layers that can be packed; those of one module that are given the same tensor, one after the other, together."""
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
    except Exception:  # whatever a foreign model does here: each by itself, then
        seen.clear()
    finally:
        for hook in hooks:
            hook.remove()
    found: list[list[Place]] = []
    before: Tensor | None = None
    for layer, input in seen:
        place = places.pop(layer, None)
        if place is None:  # it is used more than once: by itself
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
    """Whether packing is the usual choice here: there are layers that can be, and their weights may be copied.

    It depends on the machine and the model only, not on a timing, so that the same search gives the same numbers each time.
    """
    stock = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear) and _can_pack(layer)]
    return 0 < sum(weight.numel() * weight.element_size() for weight in stock) <= MOST_BYTES


def _can_pack(layer: nn.Linear) -> bool:
    """Whether a layer computes its output from plain weights on the CPU, and by nothing else.

    Weights of other classes are quantized ones, say, whose products are their own affair.
    """
    weight = layer.weight
    return (
        type(layer) is nn.Linear  # parametrizations are another class
        and all(
            type(t) in (Tensor, nn.Parameter)
            and (t.layout, t.device.type, t.dtype) == (torch.strided, "cpu", weight.dtype)
            for t in layer._parameters.values()
            if t is not None
        )
        and torch.backends.mkldnn.is_available()
        and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and computes_bfloat16()))
        and "forward" not in vars(layer)  # wrapped, to fetch its weight from elsewhere, say
        and not (layer._forward_hooks or layer._forward_pre_hooks)  # a hook watches this very module
    )


def computes_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself, so that it is the faster number format."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
