"""``fit_probe`` on the embedded model."""

import numpy as np
import pytest

from rksc_tot import MockEngine, load_engine
from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import function_task
from rksc_tot.evaluation.probe.examples import examples_of
from rksc_tot.evaluation.probe.fit import auc_by_depth, fit_heads, fit_probe
from rksc_tot.tasks import load_task
from rksc_tot.verifiers import LinearProbe

PUZZLES = ["4 5 6 10", "1 2 7 8", "4 5 9 9", "3 9 12 13", "1 1 8 8", "2 4 6 8", "1 2 3 4", "3 3 8 8"]
SMALL = {"k": 8, "width": 2}


@pytest.fixture(scope="module")
def engine():
    with load_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def fitted(engine):
    seen = []
    fit = fit_probe("game24", PUZZLES, engine=engine, labels="checker", on_problem=seen.append, **SMALL)
    assert sorted(seen) == sorted(PUZZLES)
    return fit


async def test_labels_of_the_checker_are_exact_and_those_of_rollouts_are_shares(engine):
    task = load_task("game24")
    exact = await examples_of(task, PUZZLES[0], engine, "checker", 8, 3, 0)
    shares = await examples_of(task, PUZZLES[0], engine, "rollouts", 8, 3, 0)
    assert {example.label for example in exact} == {0.0, 1.0}
    assert all(0 <= example.label <= 1 for example in shares)
    assert {example.depth for example in shares} == {1, 2, 3}
    last = [[example for example in found if example.depth == 3] for found in (exact, shares)]
    assert [example.label for example in last[0]] == [example.label for example in last[1]]
    assert len(shares) < len(exact)  # nodes that were not grown have no label
    assert {example.states.shape for example in exact} == {(8, 160)}


def test_the_fit_has_what_it_was_made_for_and_a_figure_for_each_layer(engine, fitted, tmp_path):
    fitted.save(tmp_path / "probe.json")
    verifier = LinearProbe(file=str(tmp_path / "probe.json"))
    assert verifier.fit == fitted
    verifier.check(engine, load_task("game24"))
    [head] = fitted.heads  # too few thoughts for heads by depth
    assert (fitted.layers, len(head.auc), len(head.weight), head.depth) == (8, 8, 160, None)
    assert head.auc[head.layer - 1] == max(auc for auc in head.auc if auc is not None)


def test_the_same_seed_gives_the_same_fit(engine, fitted):
    engine.clear()
    again = fit_probe("game24", PUZZLES, engine=engine, labels="checker", concurrency=3, **SMALL)
    assert again.thoughts == fitted.thoughts
    assert again.heads[0].auc == pytest.approx(fitted.heads[0].auc, abs=1e-3)


def test_each_depth_with_enough_thoughts_has_a_head_that_reads_its_own_layer():
    rng = np.random.default_rng(0)
    n = 2000
    states, y, depth = (
        rng.normal(size=(n, 3, 4)).astype(np.float32),
        rng.integers(2, size=n),
        rng.integers(1, 3, size=n),
    )
    states[depth == 1, 1, 0] += 3 * y[depth == 1]
    states[depth == 2, 2, 1] -= 3 * y[depth == 2]
    depth[:30] = 3  # too few
    heads = fit_heads(states, y.astype(float), depth, rng.random(n) < 0.25)
    assert [(head.depth, head.layer) for head in heads[:2]] == [(1, 2), (2, 3)]
    assert heads[0].weight[0] > 0 > heads[1].weight[1]
    assert (len(heads), heads[-1].depth) == (3, None)
    assert heads[0].auc[1] > 0.9


def test_the_auc_is_that_of_each_depth_alone():
    scores, right, depth = np.array([1, 2, 3, 4, 9.0]), np.array([0, 1, 1, 0, 1.0]), np.array([1, 1, 2, 2, 3])
    assert auc_by_depth(scores, right, depth) == {1: 1.0, 2: 0.0}


@pytest.mark.parametrize(
    ("task", "labels", "says"),
    [
        ({"check": lambda problem, answer: None}, "rollouts", "rollouts need a task whose check"),
        ({}, "checker", "cannot tell which thoughts are promising"),
        ({"promising": lambda problem, path: True}, "checker", "every thought leads to a right answer"),
        ({"check": lambda problem, answer: False}, "rollouts", "none of the thoughts leads to a right answer"),
    ],
)
def test_a_task_without_labels_of_both_kinds_is_refused(engine, task, labels, says):
    words = function_task(
        prompt=lambda problem: f"steps {problem}\n", is_solution=lambda problem, path: len(path) == 1, **task
    )
    with pytest.raises(ConfigError, match=says):
        fit_probe(words, PUZZLES, engine=engine, labels=labels, k=2, width=1)


def test_too_few_problems_and_engines_without_states_are_refused(engine):
    with pytest.raises(ConfigError, match="3 problems are too few"):
        fit_probe("game24", PUZZLES[:3], engine=engine)
    with pytest.raises(ConfigError, match="'mock' keeps no hidden states"):
        fit_probe("game24", PUZZLES, engine=MockEngine(lambda text, rng: "x"))
