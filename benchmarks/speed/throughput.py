"""Throughput of many problems at a time compared with one at a time, and whether the trees are equal.

``python -m benchmarks throughput [--json] [--quick]``. 64 problems run through ``solve_many`` at concurrency 32 and 1, in turn.
The cache is empty at the start of each round.

* ``speedup_32.NAME``: time at concurrency 1 over time at 32, over all rounds; ``low``, ``high``: 95 % by bootstrap over rounds
* ``problems_per_second.NAME.C``, ``rows_per_pass.NAME.C``: medians at concurrency C
* ``identical``: whether every tree is equal at both concurrencies, node by node: branch, text, reason of pruning, and score to
  four digits
* ``equal_trees.NAME``: number of equal trees

Workloads. ``embedded``: game-of-24 puzzles (held-out roots) on the embedded model, BFS with b=5, k=32. ``embedded_bfs``: with the
strategy's defaults (b=5, k=5). ``embedded_dfs``: DFS (k=32). ``embedded_chain``: one greedy chain a problem. A search that
expands many nodes in each pass fills its passes alone, so it gains less from concurrency. ``smollm2_shape``: a model of
SmolLM2-135M's shape with random weights; prompts of 48 to 96 tokens, three levels of thoughts of 8 to 16 tokens, BFS (b=2, k=4),
each thought judged by a question of 16 tokens with two labels.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.common.baselines import LABELS
from benchmarks.common.random_models import SHAPES, random_model, word_tokenizer
from benchmarks.common.report import Quick, Report
from benchmarks.speed.paper import QUESTION_TOKENS, ratio
from rksc_tot import Question, Reject, Result, Strategy, Task, Thought, function_task, load_engine, solve_many
from rksc_tot.core.task import Path
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.evaluation.problems import choose_problems
from rksc_tot.strategies import BFS

PROBLEMS = 64
CONCURRENCIES = (1, 32)
ROUNDS = {"embedded": 2, "smollm2_shape": 1}
PROMPT = (48, 96)
THOUGHT = (8, 16)
Tree = list[tuple[str, str, str | None, str]]


@dataclass
class Case:
    """Problems, their search settings, and measurements: by concurrency, a value for each round."""

    name: str
    task: Task | str
    problems: Sequence[str]
    strategy: Strategy | str
    seconds: dict[int, list[float]] = field(default_factory=dict)
    rows_per_pass: dict[int, list[float]] = field(default_factory=dict)
    trees: dict[int, list[dict[str, Tree]]] = field(default_factory=dict)

    def run(self, engine: TransformersEngine, concurrency: int) -> None:
        """Search all problems on an engine with an empty cache."""
        engine.clear()
        before, start = engine.usage, time.perf_counter()
        results: dict[str, Result] = {}
        for outcome in solve_many(
            self.task, self.problems, engine=engine, concurrency=concurrency, strategy=self.strategy
        ):
            if outcome.result is None:
                raise RuntimeError(f"{outcome.problem!r} was not searched: {outcome.failure}")
            results[outcome.problem] = outcome.result
        self.seconds.setdefault(concurrency, []).append(time.perf_counter() - start)
        after = engine.usage
        rows = (after.rows - before.rows) / (after.passes - before.passes)
        self.rows_per_pass.setdefault(concurrency, []).append(rows)
        self.trees.setdefault(concurrency, []).append({problem: tree(found) for problem, found in results.items()})

    def figures(self) -> dict[str, Any]:
        """The figures of the case."""
        one, many = CONCURRENCIES
        found: dict[str, Any] = ratio(
            f"speedup_{many}.{self.name}", np.array([self.seconds[one]]), np.array([self.seconds[many]])
        )
        for concurrency in CONCURRENCIES:
            key = f"{self.name}.{concurrency}"
            rate = len(self.problems) / float(np.median(self.seconds[concurrency]))
            found[f"problems_per_second.{key}"] = round(rate, 3)
            found[f"rows_per_pass.{key}"] = round(float(np.median(self.rows_per_pass[concurrency])), 1)
        same, all_of_them = self.equal()
        return found | {f"equal_trees.{self.name}": f"{same} of {all_of_them}"}

    def equal(self) -> tuple[int, int]:
        """Number of trees at high concurrency that equal those of the first round at concurrency 1, and number of trees."""
        one, many = CONCURRENCIES
        first = self.trees[one][0]
        others = [found for round in (*self.trees[one][1:], *self.trees[many]) for found in round.items()]
        return sum(found == first[problem] for problem, found in others), len(others)


def tree(result: Result) -> Tree:
    """The values by which two trees are compared."""
    return [
        (node.branch, node.text, node.pruned, "" if node.score is None else f"{node.score:.4g}") for node in result.tree
    ]


def games(quick: bool) -> list[Case]:
    """Puzzles for the embedded model."""
    problems = choose_problems(held_out=True)[: 8 if quick else PROBLEMS]
    usual = Case("embedded", "game24", problems, "bfs")
    if quick:
        return [usual]
    return [
        usual,
        Case("embedded_bfs", "game24", problems, BFS()),
        Case("embedded_dfs", "game24", problems, "dfs"),
        Case("embedded_chain", "game24-chain", problems, "cot"),
    ]


def words(count: int, vocabulary: int, rng: random.Random) -> str:
    """Random words of the word tokenizer, one token each."""
    return "".join(f" w{rng.randrange(vocabulary - 1 - len(LABELS))}" for _ in range(count))


def small_search(vocabulary: int) -> Task:
    """A task whose thoughts have 8 to 16 words. A thought ends before a word that begins with 9, or is cut off."""

    def parse(problem: str, path: Path, text: str) -> Thought:
        if len(text.split()) < THOUGHT[0]:
            raise Reject("it is too short")
        return Thought(text)

    question = words(QUESTION_TOKENS, vocabulary, random.Random("question"))
    return function_task(
        prompt=lambda problem: problem, is_solution=lambda problem, path: len(path) == 3, parse=parse, max_thoughts=3,
        question=lambda problem, path: Question(question, {LABELS[0]: 1.0, LABELS[1]: 0.0}),
        max_thought_tokens=THOUGHT[1], accept_truncated=True, stop=(" w9",), name="small search",
    )  # fmt: skip


def small_searches(shape: str, quick: bool) -> tuple[TransformersEngine, Case]:
    """A model with random weights, and prompts for it."""
    vocabulary = SHAPES[shape]["vocab_size"]
    engine = TransformersEngine(random_model(shape), word_tokenizer(vocabulary), name="random weights")
    rng = random.Random("prompts")
    problems = [words(rng.randint(*PROMPT), vocabulary, rng) for _ in range(8 if quick else PROBLEMS)]
    return engine, Case("smollm2_shape", small_search(vocabulary), problems, BFS(b=2, k=4))


def compare(engine: TransformersEngine, cases: Sequence[Case], rounds: int) -> None:
    """Run every case at every concurrency, in turn."""
    for case in cases:
        for turn in range(rounds):
            for concurrency in CONCURRENCIES if turn % 2 == 0 else CONCURRENCIES[::-1]:
                case.run(engine, concurrency)


def measure(quick: bool) -> dict[str, Any]:
    """The figures of this benchmark."""
    rounds = dict.fromkeys(ROUNDS, 1) if quick else ROUNDS
    cases = games(quick)
    with load_engine() as engine:
        Case("warm", "game24", cases[0].problems[:2], "bfs").run(engine, 2)
        compare(engine, cases, rounds["embedded"])
    engine, case = small_searches("tiny" if quick else "smollm2-135m", quick)
    with engine:
        Case("warm", case.task, case.problems[:1], case.strategy).run(engine, 1)
        compare(engine, [case], rounds["smollm2_shape"])
    cases.append(case)
    figures: dict[str, Any] = {"identical": all(same == total for same, total in (case.equal() for case in cases))}
    for case in cases:
        figures |= case.figures()
    return figures


def main(quick: Quick = False) -> Report:
    """Search many problems at a time, and one at a time."""
    logging.getLogger("rksc_tot").setLevel(logging.ERROR)  # hides warnings that labels are unlikely
    return Report(measure(quick))
