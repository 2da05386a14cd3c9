"""Every generator of the package reasoning-gym as a task ``gym:NAME`` (extra ``gym``); its scorer is the check.

reasoning-gym (Apache-2.0) generates problems by seed: problem 7 of ``gym:chain_sum`` is the first of
``reasoning_gym.create_dataset("chain_sum", seed=7, size=1)``.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rksc_tot.core.errors import ConfigError, MissingExtra, TaskError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import Path, Question, Task

PREFIX = "gym"
MARKER = "Answer:"
LEFT_OUT = ("composite",)  # it mixes other generators and needs their settings
RIGHT = 1.0 - 1e-9  # of the scorer's scores, which are from 0 to 1
FIX = "give a whole number, the seed of a problem"

REQUEST = f"""
Solve the problem in short steps, with an empty line after each step. Begin the last step with "{MARKER}" and the answer alone.

"""
QUESTION = "\nAre all steps so far right? Answer yes or no:"
LABELS = {" yes": 1.0, " no": 0.0}

_LOCK = threading.Lock()
_ANSWER = re.compile(rf"^[ *#]*{MARKER}[ *]*", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class GymProblem:
    """A problem by its seed, with its text."""

    seed: int
    text: str


def gym_names() -> list[str]:
    """The generators of the installed reasoning-gym; none without it."""
    if find_spec("reasoning_gym") is None:
        return []
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - set(LEFT_OUT))


@contextmanager
def _global_random(seed: int) -> Iterator[None]:
    """Seed the global random stream for a while, since some generators draw from it."""
    with _LOCK:
        before = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)


class GymTask(Task):
    """Problems of one generator of reasoning-gym. A thought is a paragraph; the one that begins with ``Answer:`` is the last.

    A problem is a whole number: its seed.

    Parameters
    ----------
    generator : str
        Name of the generator.
    settings : Mapping
        Settings of the generator, such as ``{"min_terms": 5}``.

    Raises
    ------
    MissingExtra
        If reasoning-gym is not installed.
    ConfigError
        If it has no such generator, or the generator refuses the settings.
    """

    stop = ("\n\n",)
    max_thought_tokens = 256
    max_thoughts = 8

    def __init__(self, generator: str, settings: Mapping[str, Any] | None = None) -> None:
        if find_spec("reasoning_gym") is None:
            raise MissingExtra("tasks of reasoning-gym need the package", hint="pip install 'rksc_tot[gym]'")
        if generator not in gym_names():
            raise ConfigError(
                f"reasoning-gym has no generator {shown(generator, 40)}",
                hint=f"{did_you_mean(generator, gym_names())}it has {', '.join(gym_names())}",
            )
        vars(self)["name"] = f"{PREFIX}:{generator}"
        self.generator, self.settings = generator, dict(settings or {})
        self._last: tuple[int, Any, dict[str, Any]] | None = None
        try:
            self._dataset(0)
        except UserCodeError as raised:
            raise ConfigError(f"{PREFIX}:{generator} refuses its settings: {raised}", hint="correct them") from raised

    def _dataset(self, seed: int) -> Any:
        from reasoning_gym import create_dataset

        with calling_user_code(f"the generator {self.generator}"):
            return create_dataset(self.generator, seed=seed, size=1, **self.settings)

    def _entry(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """The dataset of a seed and its only entry. The last one is kept, as scorers are asked about it often."""
        if self._last is not None and self._last[0] == seed:
            return self._last[1:]
        dataset = self._dataset(seed)
        with calling_user_code(f"the generator {self.generator}"), _global_random(seed):
            entry = dataset[0]
        self._last = (seed, dataset, entry)
        return dataset, entry

    def validate(self, problem: Any) -> GymProblem:
        """The problem of a seed."""
        problem = problem.seed if isinstance(problem, GymProblem) else problem
        if isinstance(problem, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", problem):
            problem = int(problem)
        if type(problem) is not int or not 0 <= problem < 10**9:
            raise TaskError(f"{shown(problem, 40)} is not the seed of a problem", hint=FIX)
        try:
            return GymProblem(problem, str(self._entry(problem)[1]["question"]))
        except UserCodeError as raised:
            raise TaskError(f"there is no problem {problem}: {raised}", hint="give another seed") from raised

    def generate_problems(self, seed: int = 0) -> Iterator[int]:
        """Endless seeds."""
        at = seed * 10**6
        while True:
            yield at
            at += 1

    def prompt(self, problem: GymProblem) -> str:
        """The problem's text, and how to answer."""
        return f"{problem.text.rstrip()}\n{REQUEST}"

    def is_solution(self, problem: GymProblem, path: Path) -> bool:
        """Whether the last paragraph gives an answer."""
        return bool(path) and _ANSWER.search(path[-1].text) is not None

    def answer(self, problem: GymProblem, path: Path) -> str | None:
        """The text after the last ``Answer:``, None without one."""
        parts = _ANSWER.split(path[-1].text) if path else []
        return parts[-1].strip() or None if len(parts) > 1 else None

    def check(self, problem: GymProblem, answer: object) -> bool:
        """Whether the generator's scorer gives the answer the full score. An answer that the scorer cannot read is wrong."""
        return self.score(problem, answer) >= RIGHT

    def score(self, problem: GymProblem, answer: object) -> float:
        """The scorer's score from 0 to 1; many scorers give part of it to an answer that is nearly right."""
        if not isinstance(answer, str):
            return 0.0
        try:
            dataset, entry = self._entry(problem.seed)
            with calling_user_code(f"the scorer of {self.generator}"):
                return float(dataset.score_answer(answer, entry))
        except UserCodeError:
            return 0.0

    def question(self, problem: GymProblem, path: Path) -> Question:
        """Whether all steps so far are right."""
        return Question(QUESTION, LABELS)

    def solution(self, problem: GymProblem) -> Sequence[str] | None:
        """The generator's answer as the only step. None if the generator has none, or one with an empty line."""
        answer = self._entry(problem.seed)[1]["answer"]
        return None if not isinstance(answer, str) or "\n\n" in answer else [f"{MARKER} {answer}"]
