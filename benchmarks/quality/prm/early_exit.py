"""Early exit on a trained process reward model: calibrated on some puzzles, measured on others."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from benchmarks.quality.cgee import AT_ONCE, measured, outcome, searched
from benchmarks.quality.prm.overlap import PassTimes
from benchmarks.quality.prm.training import train
from rksc_tot import RKSC, Result, calibrate, load_engine
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import STEP_LABELS, Account, LabelRequest
from rksc_tot.evaluation.calibration.examples import Trace
from rksc_tot.evaluation.problems import choose_problems, training_puzzles
from rksc_tot.search import Search
from rksc_tot.search.scoring import Score
from rksc_tot.strategies import BFS
from rksc_tot.verifiers import PRM

STRATEGY = BFS(b=2, k=5)


class ComparedPRM(PRM):
    """A reward model with early exit. Each node is also read at full depth, on another account."""

    _seen: list[tuple[Node, Trace]] = PrivateAttr(default_factory=list)

    async def score(self, search: Search, nodes: Sequence[Node]) -> Sequence[Score]:
        """The scores with early exit."""
        scores = await super().score(search, nodes)
        steps = [search.tree.lineage(node)[1:] for node in nodes]
        handles = [self._paths[search].handle(path) for path in steps]
        requests = [LabelRequest(handle, "", STEP_LABELS, trace=True) for handle in handles]
        for node, reply in zip(nodes, await self.load().label(requests, Account()), strict=True):
            if reply is not None and reply.trace is not None:
                self._seen.append((node, reply.trace))
        return scores


def early_exit(quick: bool) -> dict[str, Any]:
    """Savings and errors of early exit, or why it is refused; and how much of both models' passes overlap."""
    evaluated, pool = choose_problems(held_out=True), training_puzzles(None, None)
    batches, delta, most, count = (40, 0.1, 40, 6) if quick else (250, 0.005, 760, 100)
    rng = random.Random(0)
    calibrated_on, evaluated = rng.sample(pool, most), evaluated[:count]
    with tempfile.TemporaryDirectory() as home, load_engine() as engine:
        verifier = ComparedPRM(folder=str(train(pool, batches, Path(home))))
        plain = PRM(folder=verifier.folder)
        calibration = calibrate(
            "game24", calibrated_on, engine=engine, strategy=STRATEGY, verifier=plain, delta=delta, concurrency=AT_ONCE
        )
        full = run(evaluated, engine, plain)
        rksc = RKSC(calibration=calibration, audit=0)
        early = run(evaluated, engine, plain, rksc=rksc)
        compared = run(evaluated, engine, verifier, rksc=rksc)
        times = PassTimes(engine, plain.load())
        run(evaluated, engine, plain, strategy="dfs")
        overlap = times.stop()
        plain.close()
        verifier.close()
    rows_full, rows_early = (sum(result.ledger.verifier_tokens for result in runs) for runs in (full, early))
    return {
        **measured(compared, verifier._seen, calibration),
        "rows_again": round(rows_early / rows_full - 1, 4),
        "solved_full": sum(result.correct is True for result in full),
        "solved_exit": sum(result.correct is True for result in early),
        "puzzles": len(evaluated),
        "overlap": overlap,
        **outcome(calibration),
    }


def run(puzzles: Sequence[str], engine: Any, verifier: PRM, **options: Any) -> list[Result]:
    """Search every puzzle on cleared engines, some at a time."""
    engine.clear()
    verifier.load().clear()
    runs = searched("game24", puzzles, engine, **{"strategy": STRATEGY, "verifier": lambda: verifier, **options})
    return [result for result, _ in runs]
