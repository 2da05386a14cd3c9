"""Linear layers in single precision on the CPU, by oneDNN instead of MKL where that is the faster of the two.

torch hands such products to MKL, which on processors that are not Intel's was seen to take twice the time of oneDNN. A packed
layer keeps a copy of its weight in oneDNN's own layout, so linear weights take their memory twice. The module is put in place
of the stock one and taken out again when the engine is closed; parameters stay where they are.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch
from torch import Tensor, nn

MOST_BYTES = 4 << 30
"""Linear weights beyond this are not copied unless asked for."""


class PackedLinear(nn.Module):
    """A linear layer with the parameters of another, computed by oneDNN."""

    def __init__(self, stock: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = stock.weight, stock.bias
        self.in_features, self.out_features = stock.in_features, stock.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(stock.weight.detach(), None)

    def forward(self, input: Tensor) -> Tensor:
        """``input [..., in]`` to ``[..., out]``."""
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
    """Whether packing is the usual choice here: a CPU on which MKL is slow, and weights that may be copied.

    It depends on the machine and the model only, not on a timing, so that the same search gives the same numbers each time.
    """
    stock = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear) and _can_pack(layer)]
    size = sum(weight.numel() * weight.element_size() for weight in stock)
    return bool(stock) and size <= MOST_BYTES and torch.backends.mkl.is_available() and not _is_intel()


def _can_pack(layer: nn.Linear) -> bool:
    return (
        type(layer) is nn.Linear
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float32
        and not (layer._forward_hooks or layer._forward_pre_hooks)  # somebody watches this very module
        and torch.backends.mkldnn.is_available()
    )


def _is_intel() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    named = cpuinfo.read_text(encoding="utf-8", errors="replace")[:4096] if cpuinfo.is_file() else platform.processor()
    return "Intel" in named
