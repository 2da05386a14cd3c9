"""Early exit of the verifier (CGEE): calibrated on some puzzles, measured on others.

``python -m benchmarks cgee [--puzzles FILE --rows 901-1000] [--json] [--quick]``: calibration uses game-of-24 puzzles that are
neither held out nor evaluated. Every evaluated puzzle (of the file, else the embedded model's held-out puzzles) is searched once
at full depth and once with early exit. In the second search every node is also scored at full depth, on another account.
``exit_error`` is the share of the ``n`` exits whose label differs from the label at full depth.

``python -m benchmarks cgee --model FOLDER``: yes/no checks of sums by a model that was not trained for them, with the label
probabilities of each layer. Early exit must be refused unless a threshold passes its test.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from pydantic import PrivateAttr

from benchmarks.common.report import Quick, Report
from rksc_tot import RKSC, Calibration, Result, Task, calibrate, load_engine
from rksc_tot.api.solve import asolve
from rksc_tot.core.task import Path as Thoughts
from rksc_tot.core.task import Question, Reject, Thought, function_task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, Engine, LabelRequest
from rksc_tot.evaluation.calibration import MechanismOutcome
from rksc_tot.evaluation.calibration.examples import Trace, Traced, try_exit
from rksc_tot.evaluation.problems import choose_problems, training_puzzles
from rksc_tot.policies.early_exit.cgee import ExitRule, entropy, lead, likeliest
from rksc_tot.policies.early_exit.fixed_sequence_testing import upper_bound
from rksc_tot.search import Search
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import LMValue
from rksc_tot.verifiers.base import Score, Verifier

AT_ONCE = 8


class Compared(LMValue):
    """LM value with early exit. Each node is also scored at full depth, on another account."""

    _seen: list[tuple[Node, Trace]] = PrivateAttr(default_factory=list)

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """The scores with early exit."""
        scores = await super().score(search, nodes)
        asked = [(node, found) for node in nodes if isinstance(found := self.question(search, node), Question)]
        requests = [LabelRequest(node._handle, found.text, tuple(found.labels), trace=True) for node, found in asked]
        for (node, _), reply in zip(asked, await search.engine.label(requests, Account()), strict=True):
            if reply is not None and reply.trace is not None:
                self._seen.append((node, reply.trace))
        return scores


def searched(
    task: Task | str, problems: Sequence[str], engine: Engine, **options: Any
) -> list[tuple[Result, Verifier]]:
    """Search every problem, some at a time. ``verifier``: makes one for each search."""
    made = options.pop("verifier", LMValue)

    async def all_of_them() -> list[tuple[Result, Verifier]]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(problem: str) -> tuple[Result, Verifier]:
            verifier = made()
            async with gate:
                return await asolve(task, problem, engine=engine, verifier=verifier, **options), verifier

        return list(await asyncio.gather(*map(one, problems)))

    return asyncio.run(all_of_them())


def game24(quick: bool, puzzles: Path | None, rows: str | None, delta: float, most: int) -> dict[str, Any]:
    """The figures on the embedded model."""
    evaluated = choose_problems(file=puzzles, rows=rows) if puzzles else choose_problems(held_out=True)
    pool = training_puzzles(puzzles, rows)
    if quick:
        evaluated, delta, most = evaluated[:8], 0.1, 36
    calibrated_on = random.Random(0).sample(pool, min(most, len(pool)))
    with load_engine() as engine:
        calibration = calibrate("game24", calibrated_on, engine=engine, delta=delta, concurrency=AT_ONCE)
        engine.clear()
        full = searched("game24", evaluated, engine)
        engine.clear()
        early = searched("game24", evaluated, engine, verifier=Compared, rksc=RKSC(calibration=calibration, audit=0))
    seen = [pair for _, verifier in early if isinstance(verifier, Compared) for pair in verifier._seen]
    return {
        **measured([result for result, _ in early], seen, calibration),
        "solved_full": sum(result.correct is True for result, _ in full),
        "solved_exit": sum(result.correct is True for result, _ in early),
        "puzzles": len(evaluated),
        **outcome(calibration),
    }


def measured(early: Sequence[Result], seen: Sequence[tuple[Node, Trace]], calibration: Calibration) -> dict[str, Any]:
    """Savings of early exit, and how often its label differs from the label at full depth, over the nodes of searches.

    ``seen``: nodes, each with its label probabilities after every layer.
    """
    exits = [(node, trace) for node, trace in seen if node.layer is not None]
    flips = sum(
        likeliest([node.labels[label] for label in calibration.labels]) != likeliest(t[-1]) for node, t in exits
    )
    scored = [node for result in early for node in result.tree if node.score is not None]
    run = sum(result.ledger.verifier_layers for result in early)
    whole = sum(result.ledger.verifier_layers_full for result in early)
    by_depth = {
        str(depth): fmean(1 - (node.layer or len(t)) / len(t) for node, t in seen if node.depth == depth)
        for depth in sorted({node.depth for node, _ in seen})
    }
    return {
        "layers_saved": round(1 - run / whole, 4),
        "layers_saved_by_depth": {depth: round(saved, 4) for depth, saved in by_depth.items()},
        "skip_rate": round(fmean(node.skipped for node in scored), 4),
        "exit_error": round(flips / len(exits), 5) if exits else 0.0,
        "exit_error_upper95": round(upper_bound(flips, len(exits)), 5),
        "flips": flips,
        "n": len(exits),
        "rule": {name: replayed(found, [trace for _, trace in seen]) for name, found in rules(calibration).items()},
    }


def rules(calibration: Calibration) -> dict[str, MechanismOutcome[Any]]:
    """Both kinds of exit rule by name, without kinds that had no candidate."""
    return {each.walk[0].rule.name: each for each in (calibration.exit, calibration.other) if each.walk}


def replayed(found: MechanismOutcome[Any], traces: Sequence[Trace]) -> dict[str, Any]:
    """Savings and errors of an outcome's rule at the evaluated nodes."""
    rule: ExitRule | None = found.rule
    if rule is None:
        return {"accepted": False}
    verdicts = [try_exit(rule, trace) for trace in traces]
    acted = [verdict for verdict in verdicts if verdict is not None]
    return {
        "accepted": True,
        "layers_saved": round(sum(verdict.saved for verdict in acted) / len(traces), 4),
        "error": round(sum(verdict.wrong for verdict in acted) / len(acted), 5) if acted else 0.0,
    }


def outcome(calibration: Calibration) -> dict[str, Any]:
    """Figures of the calibration: the rules that passed, the number of examples, and why other rules failed."""
    figures: dict[str, Any] = {
        "delta": calibration.delta, "problems": calibration.problems, "fitting": calibration.fitting,
        "outside": round(calibration.outside, 4),
    }  # fmt: skip
    for name in ("exit", "other", "skip", "rivals"):
        found: MechanismOutcome[Any] = getattr(calibration, name)
        step = found.step
        figures[name] = (
            {"refused": found.refused}
            if step is None
            else {"n": step.n, "k": step.k, "saved": round(step.saved, 4), "rule": str(step.rule.model_dump())}
        )
    return {"calibration": figures}


# -- a model without training as a verifier --------------------------------------------------------------------------------

CHECKED = ("8 + 6 = 14", "yes"), ("9 + 7 = 15", "no"), ("50 - 8 = 43", "no"), ("31 - 4 = 27", "yes")
EXAMPLES = "".join(f"{statement}\nIs that right? {label}\n" for statement, label in CHECKED)


def sums() -> Task:
    """The model writes the result of a sum at a high temperature, so that it is often wrong, and then checks the result."""

    def parse(problem: str, path: Thoughts, text: str) -> Thought:
        if not re.fullmatch(r" ?-?[0-9]+", text):
            raise Reject("it is not a number")
        return Thought(text)

    return function_task(
        prompt=lambda problem: f"{EXAMPLES}{problem} =", is_solution=lambda problem, path: len(path) == 1, parse=parse,
        question=lambda problem, path: Question("Is that right?", {"yes": 1.0, "no": 0.0}),
        max_thoughts=1, max_thought_tokens=8, temperature=2.0, top_k=20, name="sums",
    )  # fmt: skip


def real(model: str, quick: bool) -> dict[str, Any]:
    """The figures on another model: whether a rule is accepted, and the label probabilities of each layer."""
    rng = random.Random(0)
    numbers = rng.sample([(a, b) for a in range(11, 90) for b in range(2, 80)], 400)
    problems = [f"{a} {'+' if a % 2 else '-'} {b}" for a, b in numbers]
    delta, count, traced = (0.1, 36, 8) if quick else (0.05, 80, 30)
    strategy = BFS(b=4, k=4)
    with load_engine(model) as engine:
        calibration = calibrate(sums(), problems[:count], engine=engine, strategy=strategy, delta=delta)
        runs = searched(sums(), problems[-traced:], engine, strategy=strategy, verifier=lambda: Traced(of=LMValue()))
    traces = [trace for _, verifier in runs if isinstance(verifier, Traced) for trace in verifier._harvest.traces]
    ends = [likeliest(trace[-1]) for trace in traces]
    layers: dict[str, Any] = {}
    for layer in range(1, len(traces[0]) + 1):
        at = [trace[layer - 1] for trace in traces]
        same = [likeliest(p) == end for p, end in zip(at, ends, strict=True)]
        sure = [agrees for p, agrees in zip(at, same, strict=True) if lead(p) >= 0.9]
        layers[str(layer)] = {
            "agreement": round(fmean(same), 4),
            "entropy": round(fmean(entropy(p) / math.log(2) for p in at), 4),
            "agreement_if_sure": round(fmean(sure), 4) if sure else None,
        }
    return {
        "accepted": ", ".join(calibration.accepted) or "nothing",
        "nodes": len(traces),
        "first_label": round(fmean(end == 0 for end in ends), 4),
        "layer": layers,
        **outcome(calibration),
    }


def main(
    quick: Quick = False,
    puzzles: Annotated[Path | None, typer.Option(help="csv of puzzles to evaluate")] = None,
    rows: Annotated[str | None, typer.Option(help="ranks of puzzles in that file")] = None,
    delta: Annotated[float, typer.Option(help="allowed share of exits with another label")] = 0.005,
    most: Annotated[int, typer.Option(help="puzzles to calibrate on")] = 800,
    model: Annotated[str | None, typer.Option(help="folder of a model that checks sums")] = None,
) -> Report:
    """Measure early exit."""
    return Report(real(model, quick) if model else game24(quick, puzzles, rows, delta, most))
