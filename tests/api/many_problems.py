"""Tasks and engines for tests of ``solve_many``."""

from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS

SMALL = BFS(b=2, k=6)


def make_task(**options):
    options = {
        "prompt": lambda problem: f"go {problem}\n",
        "is_solution": lambda problem, path: len(path) == 2,
    } | options
    return function_task(**{"max_thoughts": 2} | options)


def make_engine(**options):
    return MockEngine(lambda text, rng: f"{rng.randrange(1000)}\n", **options)


def found(outcomes):
    return {outcome.problem: outcome.result.tree.to_records() for outcome in outcomes}


def refusing(bad):
    """A task that fails on some problems."""

    def validate(problem):
        if problem in bad:
            raise ValueError("a bad one")
        return problem

    return make_task(validate=validate)
