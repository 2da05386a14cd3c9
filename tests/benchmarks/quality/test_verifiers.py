"""Figures of ``python -m benchmarks verifiers`` on an engine whose every word is known."""

import re

import pytest

from benchmarks.quality.verifiers import auc, measured, statements
from rksc_tot.engine.mock.engine import MockEngine

WORK = re.compile(r"Compute (\d+) ([-+*]) (\d+)\.")


def compute(text, rng):
    a, sign, b = WORK.findall(text)[-1]
    return str({"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign])


def test_half_of_the_statements_are_right():
    given = statements(40, seed=0)
    for text, right in given:
        left, value = text.split(" = ")
        assert (int(compute(f"Compute {left}.", None)) == int(value)) == right
    assert sum(each.right for each in given) == 20


def test_the_area_is_the_chance_that_a_right_one_scores_higher():
    assert auc([3, 2, 1], [True, False, False]) == 1
    assert auc([1, 1], [True, False]) == 0.5
    assert auc([1, 2, 3], [False, True, False]) == 0.5


async def test_a_model_that_computes_well_and_judges_badly_is_measured_as_such():
    labeller = lambda text, question, labels: dict.fromkeys(labels, 1 / len(labels))  # noqa: E731
    for chat in (False, True):
        found = await measured(MockEngine(compute, labeller), 12, chat)
        assert found["auc"]["recompute"] == found["auc"]["recompute_thought"] == found["auc"]["ensemble"] == 1
        assert found["auc"]["judge"] == found["auc"]["judge_rating"] == pytest.approx(0.5)
        assert found["n"] == 12
        assert found["tokens"]["recompute"] > 0
