"""How much attention later rows have paid to each slot, for eviction and compression policies that use it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class AttentionStats:
    """Sums of attention by slot: a total since the slot was written, and *recent* sums per layer and head.

    The recent sums of a slot restart at the first pass after :meth:`recent` read them.
    """

    def __init__(self) -> None:
        self._mass = torch.zeros(0, dtype=torch.float64)  # [rows]
        self._seen = torch.zeros(0, dtype=torch.float64)  # query rows times heads that could attend to it
        self._recent: dict[int, Tensor] = {}  # by layer, [Hk, rows]
        self._read: dict[int, list[Sequence[int]]] = {}  # by layer, slots whose recent sums restart with the next pass

    def note(self, layer: int, slots: Tensor, mass: Tensor, seen: Tensor) -> None:
        """Add attention of one layer.

        Parameters
        ----------
        slots
            Slots ``[n]``; a slot may occur repeatedly.
        mass
            Sums of attention probabilities ``[Hk, n]``.
        seen
            Query rows times heads that could attend to each slot ``[n]``.
        """
        slots, mass = slots.cpu(), mass.double().cpu()
        self._grow(int(slots.max()) + 1)
        self._mass.index_add_(0, slots, mass.sum(0))
        self._seen.index_add_(0, slots, seen.double().cpu())
        if layer not in self._recent:
            self._recent[layer] = torch.zeros(len(mass), len(self._mass), dtype=torch.float64)
        for read in self._read.pop(layer, ()):
            self._recent[layer][:, read] = 0
        self._recent[layer].index_add_(1, slots, mass)

    def forget(self, slots: Tensor) -> None:
        """Start again from 0 for slots that are overwritten."""
        slots = slots.cpu()
        self._grow(int(slots.max()) + 1)
        self._mass[slots] = 0
        self._seen[slots] = 0
        for of_layer in self._recent.values():
            of_layer[:, slots] = 0

    def copy(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Give the attention of the slots ``source`` to the slots ``target``."""
        self._grow(max(*source, *target, 0) + 1)
        for held in (self._mass, self._seen, *self._recent.values()):
            held[..., target] = held[..., source]

    def share(self, slots: Sequence[int]) -> float:
        """Mean share of a row's attention that went to these slots, 0..1; 0 where no row could attend to them."""
        known = [slot for slot in slots if slot < len(self._mass)]
        seen = float(self._seen[known].max()) if known else 0.0
        return min(1.0, float(self._mass[known].sum()) / seen) if seen else 0.0

    @torch.inference_mode()
    def recent(self, slots: Sequence[int]) -> np.ndarray:
        """Recent attention of each layer and head to these slots, ``[L, Hk, n]``.

        Their sums restart with the next pass. Until then every call returns the same, because several paths may share slots.
        """
        self._grow(max(slots, default=0) + 1)
        for layer in self._recent:
            self._read.setdefault(layer, []).append(list(slots))
        return np.stack([self._recent[layer][:, slots].numpy() for layer in sorted(self._recent)])

    @torch.inference_mode()
    def compact(self, slots: Sequence[int], kept: np.ndarray) -> None:
        """Move recent sums as :meth:`~rksc_tot.cache.arena.Arena.compact` moves the rows; totals of these slots restart at 0."""
        places = torch.tensor(slots)
        first = places[: kept.shape[-1]]
        for layer, of_layer in zip(sorted(self._recent), torch.from_numpy(kept), strict=True):
            self._recent[layer][:, first] = self._recent[layer].gather(1, places[of_layer])
        self._mass[first] = 0
        self._seen[first] = 0

    def _grow(self, rows: int) -> None:
        if rows > len(self._mass):
            more = max(rows, 2 * len(self._mass)) - len(self._mass)
            self._mass, self._seen = (torch.cat([old, old.new_zeros(more)]) for old in (self._mass, self._seen))
            self._recent = {n: torch.cat([old, old.new_zeros(len(old), more)], 1) for n, old in self._recent.items()}
