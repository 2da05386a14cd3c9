"""The replay of search trees: its counts, and equal work under every policy."""

import json
import random

import pytest
from pydantic import ValidationError

from benchmarks.common.report import flat
from benchmarks.common.tree_shapes import Shape, recorded, synthetic
from benchmarks.memory.memory import POLICIES, drawn_scores, measure, measured_auc, overruns, replay

TREE = Shape(parent=(-1, 0, 0, 2, 2), tokens=(10, 3, 4, 5, 6))
SCORES = [0.0, 0.9, 0.1, 0.2, 0.3]


def test_a_shape_has_its_paths_and_the_size_of_copies():
    assert TREE.paths == [10, 13, 14, 19, 20]
    assert TREE.depths == [0, 1, 1, 2, 2]
    assert TREE.copies == 13 + 19 + 20


@pytest.mark.parametrize(
    ("parent", "tokens"),
    [([], []), ([-1, 0], [1]), ([0], [1]), ([-1, 2, 0], [1, 1, 1]), ([-1, -1], [1, 1]), ([-1, 0], [1, 0])],
)
def test_an_invalid_tree_is_refused(parent, tokens, tmp_path):
    file = tmp_path / "trees.json"
    file.write_text(json.dumps({"task": [{"parent": parent, "tokens": tokens}]}), encoding="utf-8")
    with pytest.raises(ValidationError):
        recorded(file)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kept", [False, True])
def test_with_enough_room_no_token_is_computed_twice_and_the_peak_is_the_tree(policy, kept):
    assert replay(TREE, SCORES, policy, sum(TREE.tokens), kept) == (0, sum(TREE.tokens), True)


def test_lru_evicts_the_thought_that_is_scored_next_and_rsbcm_the_one_that_was():
    level = Shape(parent=(-1, 0, 0, 0), tokens=(5, 2, 2, 2))
    again = {policy: replay(level, [0, 1, 1, 1], policy, 9).recomputed for policy in ("lru", "rsbcm")}
    assert again == {"lru": 6, "rsbcm": 4}


def test_a_tight_replay_stays_within_its_budget_and_under_none_it_does_not_end():
    for policy in POLICIES:
        bill = replay(TREE, SCORES, policy, max(TREE.paths), kept=True)
        assert bill.peak <= max(TREE.paths)
        assert bill.finished == (policy != "none")
        assert (bill.recomputed > 0) == (policy != "none")


@pytest.mark.parametrize("auc", [0.5, 0.8, 1.0])
def test_drawn_scores_agree_with_the_recorded_choice_to_the_stated_degree(auc):
    shapes = [shape for shapes in synthetic(25).values() for shape in shapes]
    rng = random.Random(1)
    scores = [drawn_scores(shape, auc, rng) for shape in shapes]
    assert all(0 <= score <= 1 for of_tree in scores for score in of_tree)
    assert measured_auc(shapes, scores) == pytest.approx(auc, abs=0.03)


def test_synthetic_trees_depend_only_on_the_seed():
    assert synthetic(2) == synthetic(2) != synthetic(2, seed=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_random_operations_do_not_exceed_the_budget(policy):
    assert overruns(policy, 300) == 0


def test_the_figures_are_those_of_the_file(tmp_path):
    file = tmp_path / "trees.json"
    shape = {"parent": TREE.parent, "tokens": TREE.tokens}
    file.write_text(json.dumps({"small": [shape], "none": []}), encoding="utf-8")
    figures = flat(measure(quick=True, trees=file))
    assert figures["copies_over_peak.small"] == round(TREE.copies / sum(TREE.tokens), 3)
    assert (figures["overruns"], figures["operations"]) == (0, 5000)
    assert {f"recomputed.{policy}" for policy in POLICIES} < figures.keys()
    assert (
        figures["recomputed.lru"] == figures["recomputed_by_budget.lru.50%"] == figures["recomputed_by_task.small.lru"]
    )
