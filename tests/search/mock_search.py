"""Searches on an engine whose every word is known, and the tasks and verifiers for them."""

from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood, Verifier
from tests.unchecked_task import unchecked_task


def digits(text, rng):
    return f"{rng.randrange(10)}\n"


def wide(text, rng):
    return f"{rng.getrandbits(40)}\n"


def make_task(depth=3, **options):
    options = {"max_thoughts": depth, "is_solution": lambda problem, path: len(path) == depth} | options
    return unchecked_task(**{"prompt": lambda problem: f"{problem}:\n"} | options)


def make_search(writer=wide, task=None, verifier=None, events=None, context=None, engine=None, **options):
    engine = engine or MockEngine(writer, context=context)
    on_event = None if events is None else events.append
    return Search(task or make_task(), "p", engine, verifier or Likelihood(), on_event=on_event, **options)


class Constant(Verifier):
    name: str = "constant"
    value: object = 1.0

    async def score(self, search, nodes):
        return [self.value for _ in nodes]


def texts(nodes):
    return [node.text for node in nodes]


def fail(error):
    raise error


def sorted_key(problem, path):
    return tuple(sorted(thought.text for thought in path))
