"""Whether verifiers tell right calculations from wrong ones, on a real model.

Half of the statements such as ``38 * 4 = 152`` are right, half are wrong by 1, 2 or 10. Each is a thought after the same prompt.

``auc.NAME``: the probability that a right statement scores higher than a wrong one (ties count half); 0.5 says nothing.
``judge``: the model is asked whether the step is right (cold). ``judge_rating``: it rates the step from 1 to 10.
``recompute``: it computes again without seeing the statement's result, and the values are compared. ``recompute_thought``: the
same after the statement, whose result it then often copies. ``recompute_question``: it is asked whether the recomputed value,
which it is shown, is the same. ``ensemble``: recompute and judge with learned weights, fitted on one half of the statements and
measured on the other. ``n``: number of statements. ``tokens.NAME``: verifier tokens a statement.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from benchmarks.common.report import Quick, Report

if TYPE_CHECKING:
    from rksc_tot.engine.base import Engine
    from rksc_tot.verifiers import Verifier

OFF_BY = (-10, -2, -1, 1, 2, 10)
N, QUICK_N = 120, 16
ASK = "Compute the results step by step."


class Statement(NamedTuple):
    """A calculation, such as ``38 * 4 = 152``, and whether it is right."""

    text: str
    right: bool


def statements(n: int, seed: int) -> list[Statement]:
    """``n`` statements about numbers of two digits, half of them right."""
    rng, found = random.Random(seed), list[Statement]()
    for number in range(n):
        sign, a = rng.choice("+-*"), rng.randint(11, 99)
        b = rng.randint(2, 9) if sign == "*" else rng.randint(11, 99)
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        right = number % 2 == 0
        found.append(Statement(f"{a} {sign} {b} = {value if right else value + rng.choice(OFF_BY)}", right))
    return found


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """The probability that a right one scores higher than a wrong one; ties count half."""
    good = [score for score, is_right in zip(scores, right, strict=True) if is_right]
    bad = [score for score, is_right in zip(scores, right, strict=True) if not is_right]
    return sum((a > b) + (a == b) / 2 for a in good for b in bad) / (len(good) * len(bad))


async def scored(
    engine: Engine, verifier: Verifier, given: Sequence[Statement], chat: bool
) -> tuple[list[float], list[list[float] | None], float]:
    """The score of each statement, an ensemble's features, and verifier tokens a statement."""
    from rksc_tot.core.task import Prompt, function_task
    from rksc_tot.search import Search
    from rksc_tot.verifiers import Ensemble

    prompt: Prompt = [{"role": "user", "content": ASK}] if chat else f"{ASK}\n"
    task = function_task(prompt=lambda problem: prompt, is_solution=lambda problem, path: False)
    search = Search(task, "calculations", engine, verifier)
    try:
        nodes = [search.tree.add(search.root, text=each.text) for each in given]
        for node in nodes:
            node._handle = engine.extend(search.root._handle, f"{node.text}\n")
        if isinstance(verifier, Ensemble):
            return [], await verifier.features(search, nodes), 0.0
        await search.score(nodes)
        return [node.score or 0.0 for node in nodes], [], search.ledger.verifier_tokens / len(nodes)
    finally:
        search.close()


async def measured(engine: Engine, n: int, chat: bool) -> dict[str, Any]:
    """The figures of one model."""
    from rksc_tot.verifiers import Ensemble, Judge, Recompute

    verifiers: dict[str, Verifier] = {
        "judge": Judge(),
        "judge_rating": Judge(scale="rating"),
        "recompute": Recompute(),
        "recompute_thought": Recompute(of="thought"),
        "recompute_question": Recompute(compare="question"),
    }
    given = statements(n, seed=0)
    right = [each.right for each in given]
    found: dict[str, Any] = {"auc": {}, "tokens": {}, "n": n}
    features: list[list[float]] = [[] for _ in given]
    for name, verifier in verifiers.items():
        scores, _, tokens = await scored(engine, verifier, given, chat)
        found["auc"][name], found["tokens"][name] = round(auc(scores, right), 3), round(tokens, 1)
        if name in ("judge", "recompute"):
            features = [[*row, score] for row, score in zip(features, scores, strict=True)]
    half = len(given) // 2
    ensemble = Ensemble(members=[verifiers["judge"], verifiers["recompute"]]).fitted(features[:half], right[:half])
    combined = [ensemble.combined(row) for row in features[half:]]
    found["auc"]["ensemble"] = round(auc(combined, right[half:]), 3)
    return found


def main(
    model: Annotated[str, typer.Option(help="folder of the model")],
    quick: Quick = False,
    n: Annotated[int | None, typer.Option(min=4, help="number of statements")] = None,
) -> Report:
    """Score statements with each verifier."""
    from rksc_tot import load_engine

    with load_engine(model) as engine:
        chat = getattr(engine.tokenizer, "chat_template", None) is not None
        figures = asyncio.run(measured(engine, n or (QUICK_N if quick else N), chat))
    return Report(figures, {"model": model.rstrip("/").rpartition("/")[2], "chat": chat})
