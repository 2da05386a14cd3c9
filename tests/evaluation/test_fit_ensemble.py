"""Learned weights of an ensemble: from chains that the task's check labels."""

import pytest

from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.evaluation.fit_ensemble import fit_ensemble
from rksc_tot.verifiers import Ensemble, verifier


@verifier
def high(problem, path):
    return float(path[-1].text) / 9


@verifier
def noise(problem, path):
    return int(path.text) % 2


def make_task(**options):
    options = {"check": lambda problem, answer: int(answer) > 4} | options
    return function_task(prompt=lambda problem: "go\n", is_solution=lambda problem, path: len(path) == 1, **options)


def digits():
    return MockEngine(lambda text, rng: f"{rng.randrange(10)}\n")


def test_the_member_that_tells_right_chains_from_wrong_ones_gets_the_weight():
    seen = []
    ensemble = Ensemble(members=[high, noise], combine="min")
    fitted = fit_ensemble(ensemble, make_task(), "abcdefgh", engine=digits(), chains=12, on_problem=seen.append)
    assert fitted.combine == "learned"
    assert fitted.weights[0] > 5 * abs(fitted.weights[1])
    assert fitted.combined([0.9, 0.5]) > 0.5 > fitted.combined([0.1, 0.5])
    assert seen == list("abcdefgh")
    assert fitted == fit_ensemble(ensemble, make_task(), "abcdefgh", engine=digits(), chains=12)


def test_nothing_is_learned_from_chains_that_are_all_right_or_cannot_be_judged():
    for check in (lambda problem, answer: True, lambda problem, answer: None):
        with pytest.raises(ConfigError, match="paths that are right, and paths that are wrong"):
            fit_ensemble(Ensemble(members=[high]), make_task(check=check), "ab", engine=digits())


def test_a_check_that_fails_is_named():
    with pytest.raises(TaskError, match="check raised ZeroDivisionError"):
        fit_ensemble(Ensemble(members=[high]), make_task(check=lambda problem, answer: 1 / 0), "a", engine=digits())
