"""Linear layers on the CPU by oneDNN, with weights in its own layout.

In single precision torch hands such products to MKL, whose results for a row depend on how many rows there are, and which on a
processor that is not Intel's was seen to take twice the time of oneDNN. In bfloat16 torch does ask oneDNN, but has the weights
laid out anew for every product, which costs a third of the time when rows are few. A packed layer keeps a copy of its weight, so
linear weights take their memory twice. The module is put in place of the stock one and taken out again when the engine is
closed; parameters stay where they are.

A row of a packed layer is the same to the last bit whatever the other rows are and how many: seen for 1 to 256 rows in both
dtypes, but for a single row with more than :data:`LONE_FEATURES` inputs in single precision, which is therefore computed twice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

MOST_BYTES = 4 << 30
"""Linear weights beyond this are not copied unless asked for."""
LONE_FEATURES = 1024
"""oneDNN adds up in another order where one row alone has more inputs than this."""


class PackedLinear(nn.Module):
    """A linear layer with the parameters of another, computed by oneDNN."""

    def __init__(self, stock: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = stock.weight, stock.bias
        self.in_features, self.out_features = stock.in_features, stock.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(stock.weight.detach(), None)

    def forward(self, input: Tensor) -> Tensor:
        """``input [..., in]`` to ``[..., out]``."""
        if self.in_features > LONE_FEATURES and input.numel() == self.in_features:
            return self._product(input.expand(2, *input.shape))[0]
        return self._product(input)

    def _product(self, input: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(input, self._packed, self.bias, "none", [], "")
        return out


class Packing:
    """The linear layers of a model that can be packed, and their packed twins. Weights are read when this is made."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (parent, name, child, PackedLinear(child))
            for parent in model.modules()
            for name, child in parent.named_children()
            if isinstance(child, nn.Linear) and _can_pack(child)
        ]

    def on(self) -> None:
        """Put the packed layers in place."""
        for parent, name, _, packed in self._places:
            setattr(parent, name, packed)

    def off(self) -> None:
        """Put the stock layers back."""
        for parent, name, stock, _ in self._places:
            setattr(parent, name, stock)


def worth_packing(model: nn.Module) -> bool:
    """Whether packing is the usual choice here: there are layers that can be, and their weights may be copied.

    It depends on the machine and the model only, not on a timing, so that the same search gives the same numbers each time.
    """
    stock = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear) and _can_pack(layer)]
    return 0 < sum(weight.numel() * weight.element_size() for weight in stock) <= MOST_BYTES


def _can_pack(layer: nn.Linear) -> bool:
    return (
        type(layer) is nn.Linear
        and layer.weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and (layer.weight.dtype == torch.float32 or (layer.weight.dtype == torch.bfloat16 and _computes_bfloat16()))
        and not (layer._forward_hooks or layer._forward_pre_hooks)  # somebody watches this very module
    )


def _computes_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
