"""A world in which everything about a calibration is known: a mock model whose layers say what the test wants."""

import random

from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Question, function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.strategies import BFS

WORTH = {"good": 1.0, "bad": 0.0}
LAYERS = 6
SURE, UNSURE = 0.99, 0.55


def drawn(*names):
    return random.Random(stream_key(*names))


def verdict(text):
    return "good" if drawn("verdict", text).random() < 0.5 else "bad"


def between(right_from=3, sure=SURE, wrong_but_sure=0.0):
    """A lens: unsure and at random before layer ``right_from``, sure after it, and wrong with the given probability."""

    def lens(text, question, labels, layer):
        rng = drawn("lens", text, layer if layer < right_from else "late")
        label = verdict(text)
        if layer < right_from:
            label = rng.choice(labels)
        elif rng.random() < wrong_but_sure:
            label = next(other for other in labels if other != label)
        share = UNSURE if layer < right_from else sure
        return {other: share if other == label else 1 - share for other in labels}

    return lens


def judge(text, question, labels):
    label = verdict(text)
    return {other: SURE if other == label else 1 - SURE for other in labels}


def write(text, rng):
    """A thought no sibling has, of a length and a confidence of its own."""
    return f"{rng.getrandbits(32):x}"[: rng.randrange(2, 8)] + "\n", -rng.random()


def make_engine(lens=None, labeller=judge, layers=LAYERS, writer=write):
    return MockEngine(writer, labeller, layers=layers, lens=lens or between())


def make_task(**options):
    options = {
        "prompt": lambda problem: f"{problem}:\n",
        "is_solution": lambda problem, path: len(path) == 2,
        "question": lambda problem, path: Question(" worth?", WORTH),
        "max_thoughts": 2,
    } | options
    return function_task(**options)


PROBLEMS = [f"problem {n}" for n in range(90)]
WALK = {"strategy": BFS(b=2, k=3), "delta": 0.05, "alpha": 0.05}
