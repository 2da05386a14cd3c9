"""How much attention later rows have paid to each slot, for eviction that heeds it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Observed:
    """Attention by slot, added up over layers, heads and rows since the slot was last written."""

    def __init__(self) -> None:
        self._mass = torch.zeros(0, dtype=torch.float64)  # [rows]
        self._seen = torch.zeros(0, dtype=torch.float64)  # how often a row of a head could have looked there

    def note(self, slots: Tensor, mass: Tensor, seen: Tensor) -> None:
        """Add attention probabilities ``mass [n]``, of ``seen [n]`` looks, to ``slots [n]``; a slot may come repeatedly."""
        slots = slots.cpu()
        self._grow(int(slots.max()) + 1)
        self._mass.index_add_(0, slots, mass.double().cpu())
        self._seen.index_add_(0, slots, seen.double().cpu())

    def forget(self, slots: Tensor) -> None:
        """The slots are written anew."""
        slots = slots.cpu()
        self._grow(int(slots.max()) + 1)
        self._mass[slots] = 0
        self._seen[slots] = 0

    def share(self, slots: Sequence[int]) -> float:
        """The mean share of a look that went to these slots, 0..1; 0 where nobody could have looked."""
        known = [slot for slot in slots if slot < len(self._mass)]
        seen = float(self._seen[known].max()) if known else 0.0
        return min(1.0, float(self._mass[known].sum()) / seen) if seen else 0.0

    def _grow(self, rows: int) -> None:
        if rows > len(self._mass):
            more = torch.zeros(max(rows, 2 * len(self._mass)) - len(self._mass), dtype=torch.float64)
            self._mass, self._seen = torch.cat([self._mass, more]), torch.cat([self._seen, more])
