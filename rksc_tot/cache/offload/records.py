"""The KV of one token over all layers as a record of bytes, as it is stored outside the arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rksc_tot.cache.arena import Arena, gather, is_run

ALIGNMENT = 8  # bytes: a field may be read as any dtype


class Field(NamedTuple):
    """Where a record holds the keys, or the values, of a layer: ``[heads, dim]`` from byte ``start`` on."""

    start: int
    heads: int
    dim: int
    dtype: torch.dtype

    @property
    def stop(self) -> int:
        return self.start + self.heads * self.dim * self.dtype.itemsize

    def of(self, records: Tensor) -> Tensor:
        """The field in ``records [n, size]``, as a view ``[heads, n, dim]``."""
        bare = records[:, self.start : self.stop].view(self.dtype)
        return bare.view(len(records), self.heads, self.dim).transpose(0, 1)


@dataclass(frozen=True)
class Records:
    """How records of an arena are laid out: keys, then values, layer after layer.

    Each record belongs to one token, so a run of tokens can be split, and parts of it dropped, without touching the rest.

    Attributes
    ----------
    layers
        Number, keys and values of each layer.
    size
        Bytes of a record: :attr:`~rksc_tot.cache.arena.Arena.bytes_per_row`, and padding where a field is not a multiple of
        :data:`ALIGNMENT`.
    device
        Where the arena is. On CUDA the host's side is pinned.
    """

    layers: tuple[tuple[int, Field, Field], ...]
    size: int
    device: torch.device

    @classmethod
    def of(cls, arena: Arena) -> Records:
        """The layout for an arena that has been written to."""
        layers, end = [], 0
        for layer in sorted(arena.keys):
            fields = []
            for stored in arena.read(layer):
                field = Field(end, stored.shape[0], stored.shape[2], stored.dtype)
                fields.append(field)
                end = -(-field.stop // ALIGNMENT) * ALIGNMENT
            layers.append((layer, fields[0], fields[1]))
        return cls(tuple(layers), end, next(iter(arena.keys.values())).device)

    def room(self, rows: int) -> Tensor:
        """Host memory for ``rows`` records, as bytes ``[rows, size]``.

        Raises
        ------
        MemoryError
            If there is not enough memory.
        """
        try:
            return torch.empty(rows, self.size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        except RuntimeError as error:  # PyTorch raises it where memory runs out
            raise MemoryError(f"no {rows * self.size} bytes of memory are to be had") from error

    def pack(self, arena: Arena, slots: Sequence[int], records: Tensor) -> None:
        """Copy rows ``slots`` of the arena into ``records [len(slots), size]``, from :meth:`room`.

        On CUDA the copy is queued on the current stream when this returns: see :meth:`wait`.
        """
        near = records if self.device.type == "cpu" else torch.empty_like(records, device=self.device)
        rows = slice(slots[0], slots[-1] + 1) if is_run(list(slots)) else self._index(slots)
        for layer, *fields in self.layers:
            for field, stored in zip(fields, arena.read(layer), strict=True):
                field.of(near).copy_(gather(stored, rows))  # [H, n, D]
        if near is not records:
            records.copy_(near, non_blocking=self.device.type == "cuda")

    def unpack(self, arena: Arena, slots: Sequence[int], records: Tensor) -> None:
        """Copy ``records [len(slots), size]`` into rows ``slots`` of the arena; on CUDA as :meth:`pack` does."""
        near = records.to(self.device, non_blocking=self.device.type == "cuda")
        index = self._index(slots)
        for layer, keys, values in self.layers:
            arena.write(layer, keys.of(near), values.of(near), index)
        if arena.attention_stats is not None:
            arena.attention_stats.forget(index)

    def wait(self) -> None:
        """Wait until packed records have arrived, and unpacked records may be overwritten."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _index(self, slots: Sequence[int]) -> Tensor:
        return torch.tensor(slots, dtype=torch.long, device=self.device)
