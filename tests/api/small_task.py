"""A task of two thoughts, and an engine without a model that writes numbers."""

from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from tests.unchecked_task import unchecked_task


def make_task(**options):
    options = {"prompt": lambda problem: "go\n", "is_solution": lambda problem, path: len(path) == 2} | options
    return unchecked_task(**{"max_thoughts": 2} | options)


def make_engine(**options):
    return MockEngine(lambda text, rng: f"{rng.randrange(1000)}\n", **options)


TASK = function_task(
    prompt=lambda problem: f"go {problem}\n", is_solution=lambda problem, path: len(path) == 2, max_thoughts=2
)
