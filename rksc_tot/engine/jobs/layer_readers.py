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
        Rows of the question in the pass. They leave the pass when the question is decided. Labels are read at the last row.
    labels
        Token ids of the spellings of each label.
    layers
        Decoder layers of the model.
    exit
        The rule by which rows leave before the last layer; None: rows never leave.
    trace
        Whether labels are read after every layer, and ``outside`` after the last one.
    exact
        Whether the rows are computed from the full KV of the path. If not, they never leave.
    seen
        Label probabilities after each layer read so far.
    outside
        Probability of all other tokens after the last layer; None without a trace.
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
        """Whether labels are read after this layer."""
        return self.trace or layer == self.layers or (self.exit is not None and self.exit.checks(layer))

    @property
    def decided(self) -> bool:
        """Whether the rows may leave after the last layer read."""
        return self.exact and not self.trace and self.left and self.exit is not None and self.exit.decided(self.seen)

    @property
    def left(self) -> bool:
        """Whether the last layer read is not the model's last. After the pass: whether the rows left early."""
        return bool(self.seen) and self.seen[-1][0] < self.layers

    @property
    def broken(self) -> bool:
        """Whether a label probability is NaN."""
        return any(math.isnan(p) for _, reading in self.seen for p in reading)


class LabelReader:
    """Reads labels between layers (early exit) for all questions of a pass; the rows of decided questions leave."""

    def __init__(self, lens: LogitLens, questions: Sequence[LayerQuestion]) -> None:
        self._lens = lens
        self._open = list(questions)

    def after(self, layer: int, look: Look) -> Collection[int]:
        """See :class:`~rksc_tot.engine.model.layer_hooks.LayerHook`."""
        due: dict[tuple[tuple[int, ...], ...], list[LayerQuestion]] = {}
        for question in self._open:
            if question.reads(layer):
                due.setdefault(question.labels, []).append(question)
        leaving: list[int] = []
        for labels, group in due.items():
            hidden = look([question.rows[-1] for question in group])
            for question, reading in zip(group, self._lens.probabilities(hidden, labels).tolist(), strict=True):
                question.seen.append((layer, reading))
                if question.decided:
                    leaving += question.rows
                    self._open.remove(question)
            if layer == len(self._lens.layers):
                self._read_outside([(n, question) for n, question in enumerate(group) if question.trace], hidden)
        return leaving

    def _read_outside(self, traced: Sequence[tuple[int, LayerQuestion]], hidden: Tensor) -> None:
        if not traced:
            return
        whole = self._lens.all_logits(hidden[[n for n, _ in traced]]).double().softmax(-1)
        for (_, question), probabilities in zip(traced, whole, strict=True):
            inside = float(probabilities[[id for ids in question.labels for id in ids]].sum())
            question.outside = max(0.0, 1 - inside)


class StateKeeper:
    """Collects the hidden states ``[L, H]`` of rows after every layer, for the segments that end at these rows."""

    def __init__(self, rows: Sequence[int], ends: Sequence[Segment]) -> None:
        self._rows = rows
        self._ends = ends
        self._states: list[Tensor] = []

    def after(self, layer: int, look: Look) -> Collection[int]:
        """See :class:`~rksc_tot.engine.model.layer_hooks.LayerHook`."""
        self._states.append(look(self._rows))
        return ()

    def hand_out(self) -> None:
        """Store the states on their segments. Call it after the pass."""
        for segment, states in zip(self._ends, torch.stack(self._states, 1), strict=True):
            segment.states = states
