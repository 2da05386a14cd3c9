"""The KV tensors: per layer, one row of keys and one row of values for each slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rksc_tot.cache.attention_stats import AttentionStats


class Arena:
    """Keys ``[Hk, rows, Dk]`` and values ``[Hk, rows, Dv]`` per layer; heads may differ between layers.

    A layer's tensors are made when it is first written. The arena grows by half when it needs rows, so a row is copied a few
    times at most. Layers grow one after the other: only one layer has its old and its new tensors at the same time.

    Attributes
    ----------
    limit
        Maximum number of rows, from the KV budget.
    rows
        Rows allocated now in every layer.
    keys, values
        The tensors, by the number of the layer.
    attention_stats
        Attention that each row received, where a policy needs it; else None.
    """

    FIRST_ROWS = 1024
    GROWTH = 1.5

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.rows = 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.attention_stats: AttentionStats | None = None

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one token's KV over all layers; 0 before the first forward pass."""
        return sum(t.shape[0] * t.shape[2] * t.element_size() for t in (*self.keys.values(), *self.values.values()))

    def reserve(self, extent: int) -> None:
        """Make room for slots 0..extent-1. If memory runs out, stored KV is kept, and reserving can be tried again."""
        if extent <= self.rows:
            return
        rows = max(extent, min(self.limit, max(self.FIRST_ROWS, int(self.GROWTH * self.rows))))
        for part in (self.keys, self.values):
            for layer, tensor in part.items():
                if tensor.shape[1] < rows:
                    part[layer] = _grown(tensor, rows)
        self.rows = rows

    def shrink(self, extent: int) -> None:
        """Free the memory of slots from ``extent`` on."""
        if extent < self.rows:
            for part in (self.keys, self.values):
                for layer, tensor in part.items():
                    part[layer] = tensor[:, :extent].clone()
            self.rows = extent

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Put ``keys [Hk, Q, Dk]`` and ``values [Hk, Q, Dv]`` into ``slots [Q]``; returns the layer's whole tensors."""
        if layer not in self.keys:
            self.keys[layer] = keys.new_zeros(keys.shape[0], self.rows, keys.shape[2])
            self.values[layer] = values.new_zeros(values.shape[0], self.rows, values.shape[2])
        self.keys[layer].index_copy_(1, slots, keys)
        self.values[layer].index_copy_(1, slots, values)
        return self.keys[layer], self.values[layer]

    @torch.inference_mode()
    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy rows, and the attention that they received, from slots ``source [n]`` to slots ``target [n]``."""
        for parts in (self.keys, self.values):
            for part in parts.values():
                read, write = (torch.tensor(slots, device=part.device) for slots in (source, target))
                part.index_copy_(1, write, part.index_select(1, read))
        if self.attention_stats is not None:
            self.attention_stats.copy(source, target)

    @torch.inference_mode()
    def compact(self, slots: Sequence[int], kept: np.ndarray) -> None:
        """Move the rows that each layer and head keeps into the first ``k`` slots. The other slots hold no valid KV afterwards.

        Parameters
        ----------
        slots
            Slots ``[n]``.
        kept
            Indexes ``[L, Hk, k]`` into ``slots``, ascending.
        """
        layers = sorted(self.keys)
        device = self.keys[layers[0]].device
        places = torch.tensor(slots, device=device)
        for layer, of_layer in zip(layers, torch.from_numpy(kept).to(device), strict=True):
            rows = places[of_layer][..., None]  # [Hk, k, 1]
            for part in (self.keys[layer], self.values[layer]):
                part[:, places[: rows.shape[1]]] = part.gather(1, rows.expand(-1, -1, part.shape[2]))
        if self.attention_stats is not None:
            self.attention_stats.compact(slots, kept)

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer."""
        return self.keys[layer], self.values[layer]

    def finite(self, slots: Sequence[int]) -> bool:
        """Whether keys and values in these slots are finite numbers."""
        parts = [part for layer in self.keys for part in self.read(layer)]
        return all(bool(part[:, list(slots)].isfinite().all()) for part in parts)

    def clear(self) -> None:
        """Free the memory."""
        self.keys.clear()
        self.values.clear()
        self.rows = 0


def _grown(old: Tensor, rows: int) -> Tensor:
    """A copy of ``old [H, R, D]`` with room for ``rows``."""
    new = old.new_zeros(old.shape[0], rows, old.shape[2])
    new[:, : old.shape[1]] = old
    return new


def is_run(slots: list[int]) -> bool:
    """Whether slots are consecutive, so that they can be read as a view."""
    return bool(slots) and slots[-1] - slots[0] == len(slots) - 1 and slots == list(range(slots[0], slots[-1] + 1))


def gather(store: Tensor, slots: slice | Tensor) -> Tensor:
    """Rows of ``store [H, rows, D]``: a view for a slice, a copy for an index."""
    return store[:, slots] if isinstance(slots, slice) else torch.index_select(store, 1, slots)
