"""What is read while a pass runs: the labels of questions, layer by layer, and hidden states to compare thoughts by."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rksc_tot.cache.prefix_tree import Segment
from rksc_tot.core.errors import EngineError
from rksc_tot.engine.base import LabelScores
from rksc_tot.engine.jobs.label import Labelling
from rksc_tot.engine.model.layer_hooks import Look
from rksc_tot.engine.model.logit_lens import LogitLens
from rksc_tot.policies.early_exit.cgee import Reading


@dataclass(slots=True)
class LayerQuestion:
    """A question in a pass. ``rows``: those of the question, which leave when it is decided, the last one is read. ``exact``:
    whether they are computed upon what the full path gives; if not, no rule has them leave.
    """

    job: Labelling
    rows: range
    exact: bool
    seen: list[Reading] = field(default_factory=list)
    outside: float | None = None

    @property
    def left(self) -> bool:
        """Whether its rows have left before the last layer."""
        return bool(self.seen) and self.seen[-1][0] < self.job.layers

    def answer(self) -> None:
        """End the job with what was read."""
        layer, probabilities = self.seen[-1]
        if any(math.isnan(p) for _, reading in self.seen for p in reading):
            self.job.fail(EngineError("the model's logits are not numbers (NaN)", hint="try dtype float32"))
            return
        trace = tuple(tuple(reading) for _, reading in self.seen) if self.job.trace else None
        labels = dict(zip(self.job.labels, probabilities, strict=True))
        self.job.book(layer, self.exact)
        self.job.end(LabelScores(labels, self.outside, layer, trace, self.exact))


class LabelReader:
    """Reads the labels of all questions of a pass and sends decided ones away."""

    def __init__(self, lens: LogitLens, asked: Sequence[LayerQuestion]) -> None:
        self._lens = lens
        self._open = list(asked)

    def after(self, layer: int, look: Look) -> Collection[int]:
        """See :class:`~rksc_tot.engine.model.layer_hooks.LayerHook`."""
        due: dict[tuple[tuple[int, ...], ...], list[LayerQuestion]] = {}
        for asked in self._open:
            if asked.job.reads(layer):
                due.setdefault(tuple(map(tuple, asked.job.labels.values())), []).append(asked)
        leaving: list[int] = []
        for labels, group in due.items():
            hidden = look([asked.rows[-1] for asked in group])
            for asked, reading in zip(group, self._lens.probabilities(hidden, labels).tolist(), strict=True):
                asked.seen.append((layer, reading))
                if asked.exact and asked.job.decided(asked.seen):
                    leaving += asked.rows
                    self._open.remove(asked)
            if layer == len(self._lens.layers):
                self._see_outside([(n, asked) for n, asked in enumerate(group) if asked.job.trace], hidden)
        return leaving

    def _see_outside(self, traced: Sequence[tuple[int, LayerQuestion]], hidden: Tensor) -> None:
        if not traced:
            return
        whole = self._lens.all_logits(hidden[[n for n, _ in traced]]).double().softmax(-1)
        for (_, asked), probabilities in zip(traced, whole, strict=True):
            inside = float(probabilities[[id for ids in asked.job.labels.values() for id in ids]].sum())
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

    def settle(self) -> None:
        """Hand the states to their segments, once the pass is over."""
        for segment, states in zip(self._ends, torch.stack(self._states, 1), strict=True):
            segment.states = states
