"""How much attention later rows have paid to each slot, for eviction and compression policies that use it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class AttentionStats:
    """Attention by slot, summed over all rows since the slot was written: in all, and for each layer and head."""

    def __init__(self) -> None:
        self._mass = torch.zeros(0, dtype=torch.float64)  # [rows]
        self._seen = torch.zeros(0, dtype=torch.float64)  # how many rows of heads could attend to it
        self._lately: dict[int, Tensor] = {}  # by layer, [Hk, rows]: since :meth:`lately` was called
        self._told: dict[int, list[Sequence[int]]] = {}  # by layer, slots passed to :meth:`lately` since the last note

    def note(self, layer: int, slots: Tensor, mass: Tensor, seen: Tensor) -> None:
        """Add attention of one layer.

        Parameters
        ----------
        slots
            Slots ``[n]``; a slot may occur repeatedly.
        mass
            Sums of attention probabilities ``[Hk, n]``.
        seen
            How many rows of heads could attend to each slot ``[n]``.
        """
        slots, mass = slots.cpu(), mass.double().cpu()
        self._grow(int(slots.max()) + 1)
        self._mass.index_add_(0, slots, mass.sum(0))
        self._seen.index_add_(0, slots, seen.double().cpu())
        if layer not in self._lately:
            self._lately[layer] = torch.zeros(len(mass), len(self._mass), dtype=torch.float64)
        for told in self._told.pop(layer, ()):
            self._lately[layer][:, told] = 0
        self._lately[layer].index_add_(1, slots, mass)

    def forget(self, slots: Tensor) -> None:
        """Start again from 0 for slots that are overwritten."""
        slots = slots.cpu()
        self._grow(int(slots.max()) + 1)
        self._mass[slots] = 0
        self._seen[slots] = 0
        for of_layer in self._lately.values():
            of_layer[:, slots] = 0

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Give the attention of the slots ``source`` to the slots ``target``."""
        self._grow(max(*source, *target, 0) + 1)
        for held in (self._mass, self._seen, *self._lately.values()):
            held[..., target] = held[..., source]

    def share(self, slots: Sequence[int]) -> float:
        """Mean share of a row's attention that went to these slots, 0..1; 0 where no row could attend to them."""
        known = [slot for slot in slots if slot < len(self._mass)]
        seen = float(self._seen[known].max()) if known else 0.0
        return min(1.0, float(self._mass[known].sum()) / seen) if seen else 0.0

    @torch.inference_mode()
    def lately(self, slots: Sequence[int]) -> np.ndarray:
        """Attention of each layer and head to these slots, ``[L, Hk, n]``, since the last call with them.

        Calls before the next pass return the same, since paths share slots.
        """
        self._grow(max(slots, default=0) + 1)
        for layer in self._lately:
            self._told.setdefault(layer, []).append(list(slots))
        return np.stack([self._lately[layer][:, slots].numpy() for layer in sorted(self._lately)])

    @torch.inference_mode()
    def compact(self, slots: Sequence[int], kept: np.ndarray) -> None:
        """Move recent attention with the rows that :meth:`~rksc_tot.cache.arena.Arena.compact` has moved."""
        places = torch.tensor(slots)
        first = places[: kept.shape[-1]]
        for layer, of_layer in zip(sorted(self._lately), torch.from_numpy(kept), strict=True):
            self._lately[layer][:, first] = self._lately[layer].gather(1, places[of_layer])
        self._mass[first] = 0
        self._seen[first] = 0

    def _grow(self, rows: int) -> None:
        if rows > len(self._mass):
            more = max(rows, 2 * len(self._mass)) - len(self._mass)
            self._mass, self._seen = (torch.cat([old, old.new_zeros(more)]) for old in (self._mass, self._seen))
            self._lately = {n: torch.cat([old, old.new_zeros(len(old), more)], 1) for n, old in self._lately.items()}
