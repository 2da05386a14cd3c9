"""A mock engine that plays the game of 24: random legal steps, and the exact value of a state."""

import random
import re

from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.tasks.game24.world import legal_steps, value_label


def state_of(text):
    """What is left at the end of a path, or the numbers of its prompt."""
    left = re.findall(r"\(left: ([\d ]+)\)", text)
    return tuple(sorted(map(int, (left[-1] if left else text.split("\n")[0].partition(" ")[2]).split())))


def write(text: str, rng: random.Random) -> str:
    steps = legal_steps(state_of(text))
    return f"{rng.choice(steps)}\n" if steps else "nothing\n"


def judge(text, question, labels):
    return {value_label(state_of(text)): 1.0}


def player(writer=write):
    return MockEngine(writer, judge)
