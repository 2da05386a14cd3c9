"""Long paths on a hand-written model that knows exactly the facts in its KV."""

import numpy as np
import pytest

from benchmarks.common.report import flat
from benchmarks.memory import paths
from benchmarks.memory.paths import KINDS, RECENT, Told, script, write
from benchmarks.memory.recall import HEADS
from rksc_tot.policies.compression.base import PathPolicy
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.benchmarks.inline import Inline


class Blind(PathPolicy):
    """A policy that keeps the first and the last tokens, but drops statements of a fact in some heads."""

    name = "blind"
    gone: tuple[int, ...] = ()
    heads: int = HEADS

    @property
    def per_head(self):
        return True

    def select(self, view, budget, rng):
        assert view.positions.ndim == 1, "these tests reduce a segment once"
        kept = np.empty((view.layers, view.heads, min(budget, len(view))), dtype=np.int64)
        for head in range(view.heads):
            lost = [n for n in range(len(view)) if view.positions[n] in self.gone] if head < self.heads else []
            order = [*(n for n in range(len(view)) if n not in lost), *lost]
            kept[:, head] = np.sort(order[: kept.shape[-1]])
        return kept


def test_with_all_kv_every_fact_is_known():
    told = write(None, 2)
    assert told.right == dict.fromkeys(KINDS, 2)
    assert told.peak > paths.LINES


def test_dropped_facts_are_lost_and_restated_facts_are_known():
    told = write(Streaming(budget=32, recent=RECENT), 2)
    assert told.right == {"prompt": 2, "once": 0, "every_16": 2, "every_32": 2, "every_64": 0, "every_128": 0}
    told = write(Streaming(budget=32, recent=RECENT, pin_prompt=False), 1)
    assert told.right["prompt"] == 0


@pytest.mark.parametrize(("blind", "known"), [(0, True), (HEADS - 1, True), (HEADS, False)])
def test_one_head_with_a_statement_is_enough(blind, known, monkeypatch):
    monkeypatch.setattr(paths, "LINES", 72)  # so that a path is brought down once before the questions
    prompt = 1 + paths.STATED + 1  # the first token, the facts, the first line
    stated = prompt + 1  # after line 1 comes what is stated once
    told = write(Blind(budget=47, recent=RECENT, gone=(stated,), heads=blind), 2)
    assert told.peak == pytest.approx(47 + 2 * RECENT, abs=2)
    assert (told.right["once"] == 2) == known
    assert told.right["every_16"] == told.right["prompt"] == 2


def test_a_script_asks_for_each_fact_as_often_as_it_says():
    reads = [each.reads for each in script().lines[: paths.LINES]]
    for every in paths.EVERY:
        assert reads.count(f"every_{every}") == paths.LINES // every
    assert reads.count("once") == 0
    assert [each.reads for each in script().lines[-len(KINDS) - 1 : -1]] == ["p11", *KINDS[1:]]


def test_intervals_of_the_path_curve_are_those_of_its_questions(monkeypatch):
    right = {"prompt": 4, "once": 3, "every_16": 4, "every_32": 4, "every_64": 2, "every_128": 0}
    monkeypatch.setattr(paths, "write", lambda keep, count: Told(right, count, 100.0 if keep else 400.0))
    found = flat(paths.figures(4, (64,), Inline()))
    assert found["curve.paths.streaming.64.solved"] == round(14 / 20, 4)
    assert found["curve.paths.streaming_unpinned.64.memory"] == 0.25
    assert found["recall.snapkv.unpinned.every_64"] == 0.5
    assert found["curve.paths.full.memory"] == 1
