"""Training documents of the family ``game24``, and the held-out sets.

A document is a path: a prompt, then one step a line. A value document ends with the value question, whose places have targets of
their own. All randomness comes from one seeded ``random.Random``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

from rksc_tot.tasks.embedded.documents import Document, TokenTarget
from rksc_tot.tasks.game24.prompts import QUESTION, prompt_text
from rksc_tot.tasks.game24.puzzles import all_puzzles
from rksc_tot.tasks.game24.tokenizer import LABELS, TRIES
from rksc_tot.tasks.game24.world import (
    LARGEST,
    ArithmeticStep,
    State,
    combine,
    good_steps,
    legal_steps,
    reaches,
    slots,
    value_label,
)

HELD_OUT_SEED = 24
FREE = 0  # a free state: three numbers of any range
VALUE_MIX = {3: 0.36, FREE: 0.36, 2: 0.2, 1: 0.08}  # shares of the value documents by number of numbers left


@dataclass(frozen=True)
class HeldOut:
    """Puzzles and states that training must not contain.

    * ``roots``: four-number puzzles that are never a prompt.
    * ``states``: three-number states that occur neither in a path nor in a question.
    * ``root_puzzles``, ``state_puzzles``: our two evaluation sets. ``states`` has every good three-number state of the second.
    """

    roots: frozenset[State]
    states: frozenset[State]
    root_puzzles: tuple[State, ...]
    state_puzzles: tuple[State, ...]


def held_out(excluded: Iterable[State] = ()) -> HeldOut:
    """The seeded held-out sets: 100 puzzles as roots, and 50 puzzles whose good three-number states are held out too."""
    excluded = frozenset(excluded)
    rng = random.Random(HELD_OUT_SEED)
    puzzles = [p for p in all_puzzles() if p not in excluded]
    rng.shuffle(puzzles)
    root_puzzles, state_puzzles = tuple(puzzles[:100]), tuple(puzzles[100:150])
    states = {step.after for p in state_puzzles for step in good_steps(p)}
    dead = sorted({s.after for p in puzzles[150:] for s in legal_steps(p) if not reaches(s.after)})
    states.update(rng.sample(dead, 3 * len(states)))  # add states that cannot reach 24
    return HeldOut(excluded | set(root_puzzles) | set(state_puzzles), frozenset(states), root_puzzles, state_puzzles)


class Generator:
    """Generates random documents, one method for each role."""

    def __init__(self, rng: random.Random, unseen: HeldOut) -> None:
        self.rng = rng
        self.unseen = unseen
        roots = [p for p in combinations_with_replacement(range(1, 14), 4) if p not in unseen.roots]
        self.roots = roots
        self.solvable = [p for p in roots if reaches(p) and any(s.after not in unseen.states for s in good_steps(p))]

    def walk(self, state: State, good: float, until: int = 1) -> list[ArithmeticStep] | None:
        """Random steps down to ``until`` numbers, each good with probability ``good``. None if they meet a held-out state."""
        steps = []
        while len(state) > until:
            keep = good_steps(state) if self.rng.random() < good else ()
            choices = keep or legal_steps(state)
            if not choices:
                return None
            step = self.rng.choice(choices)
            state = step.after
            if state in self.unseen.states:
                return None
            steps.append(step)
        return steps

    def steps(self) -> Document:
        """Role *propose*: a path of legal steps, half of them good steps."""
        while True:
            root = self.rng.choice(self.solvable if self.rng.random() < 0.8 else self.roots)
            path = self.walk(root, good=0.5)
            if path:
                return Document(prompt_text("steps", root), "".join(f"{s}\n" for s in path) + "<eos>")

    def solve(self) -> Document:
        """Role *whole chain*: a correct solution."""
        while True:
            root = self.rng.choice(self.solvable)
            path = self.walk(root, good=1.0)
            if path:
                return Document(prompt_text("solve", root), "".join(f"{s}\n" for s in path) + "<eos>")

    def value(self) -> Document:
        """Role *value*: a path, then the question. Half of the states can reach 24; about a third are free states."""
        want = self.rng.random() < 0.5
        [size] = self.rng.choices(tuple(VALUE_MIX), tuple(VALUE_MIX.values()))
        while True:
            found = self._free_state(want) if size == FREE else self._game_state(size)
            if found is None or reaches(found[2]) != want:
                continue
            root, path, state = found
            label = value_label(state)
            early = label if len(state) < 3 else self.rng.choice(LABELS)
            return Document(
                prompt_text("steps", root),
                "".join(f"{s}\n" for s in path),
                question=QUESTION,
                targets=(
                    *try_targets(state),
                    TokenTarget("label", 0, f" {label}"),
                    TokenTarget("early", 0, f" {early}"),
                ),
                learn_body=False,
                swap=len(state) == 3,
            )

    def _game_state(self, size: int) -> tuple[State, list[ArithmeticStep], State] | None:
        root = self.rng.choice(self.roots)
        path = self.walk(root, good=0.6, until=size)
        return (root, path, path[-1].after) if path else None

    def _free_state(self, want: bool) -> tuple[State, list[ArithmeticStep], State] | None:
        """A three-number state of any range, built backwards from 24 and sometimes altered, sometimes with a step before it."""
        state: State = (24,)
        for _ in range(2):
            state = self._split(state)
        if not want and self.rng.random() < 0.7:
            spoilt = list(state)
            at = self.rng.randrange(3)
            spoilt[at] = min(LARGEST, max(0, spoilt[at] + self.rng.choice((-3, -2, -1, 1, 2, 3))))
            state = tuple(sorted(spoilt))
        elif not want:
            state = tuple(sorted(self._number() for _ in range(3)))
        if state in self.unseen.states:
            return None
        if self.rng.random() < 0.5:
            return state, [], state
        root = self._split(state)
        if root in self.unseen.roots:
            return None
        lead = [s for s in legal_steps(root) if s.after == state]
        return (root, [self.rng.choice(lead)], state) if lead else None

    def _number(self) -> int:
        return self.rng.randint(0, self.rng.choice((13, 13, 30, 100, LARGEST)))

    def _split(self, state: State) -> State:
        """Replace one number by two numbers that make it."""
        while True:
            at = self.rng.randrange(len(state))
            made, rest = state[at], state[:at] + state[at + 1 :]
            op, part = self.rng.choice("+-*/"), self._number()
            other = {"+": made - part, "-": made + part, "*": made // part if part else -1, "/": made * part}[op]
            if 0 <= other <= LARGEST and combine(min(part, other), max(part, other), op) == made:
                return tuple(sorted((*rest, part, other)))


def try_targets(state: State) -> Iterator[TokenTarget]:
    """For each try of the question: its result, or ``no`` if it has none; and the verdict whether 24 can be reached after it."""
    made = {f"{i + 1}{op}{j + 1}": result for i, j, op, result in slots(state) if j < 3}
    for at, name in enumerate(TRIES):
        back, result = len(TRIES) - at, made.get(name)
        gone = (int(name[0]) - 1, int(name[2]) - 1)
        rest = (number for i, number in enumerate(state) if i not in gone)
        good = result is not None and reaches(tuple(sorted((*rest, result))))
        yield TokenTarget("result", back, " no" if result is None else f" {result}")
        yield TokenTarget("verdict", back, " yes" if good else " no")
