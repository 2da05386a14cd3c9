"""Layer hooks of a pass: one reads the labels of questions after each layer, one keeps hidden states."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.engine.model.layer_hooks import Look
from rksc_tot.engine.model.logit_lens import LogitLens
from rksc_tot.policies.early_exit.cgee import ExitRule, Reading


@dataclass(slots=True)
class LayerQuestion:
    """A question whose labels are read between the layers of one pass.

    Attributes
    ----------
    rows
        Rows of the question in the pass. They leave when it is decided; the labels are read at the last one.
    labels
        Token ids of the spellings of each label.
    layers
        Decoder layers of the model.
    exit
        When the rows may leave before the last layer; None: never.
    trace
        Whether the labels are read after every layer, and ``outside`` after the last.
    exact
        Whether the rows are computed from the full KV of the path. If not, they do not leave.
    seen
        Label probabilities after each layer read so far.
    outside
        Probability of everything but the labels after the last layer, where the layers are traced.
    """

    rows: range
    labels: tuple[tuple[int, ...], ...]
    layers: int
    exit: ExitRule | None
    trace: bool
    exact: bool
    seen: list[Reading] = field(default_factory=list)
    outside: float | None = None

    def reads(self, layer: int) -> bool:
        """Whether the labels are read after this layer."""
        return self.trace or layer == self.layers or (self.exit is not None and self.exit.checks(layer))

    @property
    def decided(self) -> bool:
        """Whether the rows may leave after the last layer read."""
        return self.exact and not self.trace and self.left and self.exit is not None and self.exit.decided(self.seen)

    @property
    def left(self) -> bool:
        """Whether the last layer read is before the model's last; after the pass: whether the rows have left."""
        return bool(self.seen) and self.seen[-1][0] < self.layers

    @property
    def broken(self) -> bool:
        """Whether a probability is NaN."""
        return any(math.isnan(p) for _, reading in self.seen for p in reading)


class LabelReader:
    """Reads the labels of all questions of a pass; the rows of decided questions leave."""

    def __init__(self, lens: LogitLens, asked: Sequence[LayerQuestion]) -> None:
        self._lens = lens
        self._open = list(asked)

    def after(self, layer: int, look: Look) -> Collection[int]:
        """See :class:`~rksc_tot.engine.model.layer_hooks.LayerHook`."""
        due: dict[tuple[tuple[int, ...], ...], list[LayerQuestion]] = {}
        for asked in self._open:
            if asked.reads(layer):
                due.setdefault(asked.labels, []).append(asked)
        leaving: list[int] = []
        for labels, group in due.items():
            hidden = look([asked.rows[-1] for asked in group])
            for asked, reading in zip(group, self._lens.probabilities(hidden, labels).tolist(), strict=True):
                asked.seen.append((layer, reading))
                if asked.decided:
                    leaving += asked.rows
                    self._open.remove(asked)
            if layer == len(self._lens.layers):
                self._read_outside([(n, asked) for n, asked in enumerate(group) if asked.trace], hidden)
        return leaving

    def _read_outside(self, traced: Sequence[tuple[int, LayerQuestion]], hidden: Tensor) -> None:
        if not traced:
            return
        whole = self._lens.all_logits(hidden[[n for n, _ in traced]]).double().softmax(-1)
        for (_, asked), probabilities in zip(traced, whole, strict=True):
            inside = float(probabilities[[id for ids in asked.labels for id in ids]].sum())
            asked.outside = max(0.0, 1 - inside)


class StateKeeper:
    """Keeps the hidden states after every layer ``[L, H]`` of rows, for the segments that end there."""

    def __init__(self, rows: Sequence[int], ends: Sequence[Segment]) -> None:
        self._rows = rows
        self._ends = ends
        self._states: list[Tensor] = []

    def after(self, layer: int, look: Look) -> Collection[int]:
        """See :class:`~rksc_tot.engine.model.layer_hooks.LayerHook`."""
        self._states.append(look(self._rows))
        return ()

    def hand_out(self) -> None:
        """Store the states on their segments, once the pass is over."""
        for segment, states in zip(self._ends, torch.stack(self._states, 1), strict=True):
            segment.states = states
