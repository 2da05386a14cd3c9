"""Measure the embedded model on trained and held-out puzzles.

``python -m rksc_tot.tasks.embedded.families.game24.evaluate game24 [--model FOLDER] [--exclude FILE --rows 901-1000]`` prints the
figures of the model card as JSON. ``rksc-tot compare game24`` measures searches.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine import TransformersEngine, load_engine
from rksc_tot.engine.base import Account, GenerateRequest, LabelRequest, Sampling
from rksc_tot.tasks.embedded.families.game24.documents import HeldOut, held_out
from rksc_tot.tasks.game24.prompts import QUESTION, prompt_text
from rksc_tot.tasks.game24.puzzles import read_puzzles
from rksc_tot.tasks.game24.tokenizer import LABELS
from rksc_tot.tasks.game24.world import ArithmeticStep, State, legal_steps, reaches

CHUNK = 64  # questions in one engine call


class ModelReply(NamedTuple):
    """A state and the model's answer to the value question."""

    state: State
    possible: float  # P(sure) + P(likely)


def states_after_one_step(roots: Sequence[State]) -> dict[State, tuple[State, ArithmeticStep]]:
    """Every three-number state one step after the roots, with a root and a step that lead to it."""
    found: dict[State, tuple[State, ArithmeticStep]] = {}
    for root in roots:
        for step in legal_steps(root):
            found.setdefault(step.after, (root, step))
    return found


async def ask(engine: TransformersEngine, ways: Sequence[tuple[State, Sequence[ArithmeticStep]]]) -> list[ModelReply]:
    """Ask the value question at the end of each path."""
    asked: list[ModelReply] = []
    for at in range(0, len(ways), CHUNK):
        account = Account()
        handles = [
            engine.open(prompt_text("steps", root) + "".join(f"{s}\n" for s in steps), account)
            for root, steps in ways[at : at + CHUNK]
        ]
        scores = await engine.label([LabelRequest(h, QUESTION, LABELS) for h in handles], account)
        for (root, steps), score in zip(ways[at : at + CHUNK], scores, strict=True):
            if score is not None:  # there is no deadline
                asked.append(ModelReply(steps[-1].after if steps else root, 1 - score.probabilities["impossible"]))
        for handle in handles:
            engine.release(handle)
        engine.clear()
    return asked


def value_figures(asked: Sequence[ModelReply]) -> dict[str, float]:
    """Accuracy, area under the ROC curve, and the accuracy of always answering *impossible*."""
    good = [a.possible for a in asked if reaches(a.state)]
    bad = [a.possible for a in asked if not reaches(a.state)]
    right = sum(p >= 0.5 for p in good) + sum(p < 0.5 for p in bad)
    wins = sum((g > b) + 0.5 * (g == b) for g in good for b in bad)
    return {
        "states": len(asked),
        "reachable": len(good),
        "accuracy": right / len(asked),
        "auc": wins / (len(good) * len(bad)),
        "recall": sum(p >= 0.5 for p in good) / len(good),
        "always_impossible": len(bad) / len(asked),
    }


async def proposal_figures(engine: TransformersEngine, roots: Sequence[State], draws: int) -> dict[str, float]:
    """Shares of sampled first steps that are legal and that keep 24 in reach, and the same for uniform legal steps."""
    legal = keeping = 0
    account = Account()
    requests = [
        GenerateRequest(
            engine.open(prompt_text("steps", root), account), stream_keys(range(draws), root), Sampling(), 24, ("\n",)
        )
        for root in roots
    ]
    for root, found in zip(roots, await engine.generate(requests, account), strict=True):
        known = {str(step): step for step in legal_steps(root)}
        for completion in found:
            step = known.get(completion.text)
            legal += len(completion.branches) * (step is not None)
            keeping += len(completion.branches) * (step is not None and reaches(step.after))
    uniform = [sum(reaches(s.after) for s in legal_steps(r)) / len(legal_steps(r)) for r in roots]
    return {
        "legal": legal / (draws * len(roots)),
        "keeps_24": keeping / max(1, legal),
        "uniform_keeps_24": sum(uniform) / len(roots),
    }


async def measure(engine: TransformersEngine, unseen: HeldOut, excluded: Sequence[State]) -> dict[str, object]:
    """All figures of the model card."""
    rng = random.Random(0)
    trained = [p for p in combinations_with_replacement(range(1, 14), 4) if p not in unseen.roots]
    ways = states_after_one_step(trained)
    met = rng.sample(sorted(s for s in ways if s not in unseen.states), 2000)
    anywhere = states_after_one_step([*trained, *sorted(unseen.roots)])
    sets = {"met": met, "held_out": sorted(unseen.states)}
    figures: dict[str, object] = {
        f"value_{name}": value_figures(await ask(engine, [(anywhere[s][0], [anywhere[s][1]]) for s in chosen]))
        for name, chosen in sets.items()
    }
    twos = {t.after: (ways[s], t) for s in met for t in legal_steps(s)}
    chosen = rng.sample(sorted(twos), min(500, len(twos)))
    paths = [(way[0], [way[1], last]) for way, last in (twos[pair] for pair in chosen)]
    figures["value_two_numbers"] = value_figures(await ask(engine, paths))
    groups = {"held_out_roots": unseen.root_puzzles, "held_out_states": unseen.state_puzzles}
    if excluded:
        groups["excluded"] = tuple(excluded)
    for name, roots in groups.items():
        figures[f"proposals_{name}"] = await proposal_figures(engine, roots, 32)
    return figures


def main(
    what: Annotated[str, typer.Argument(help="which model: game24")],
    model: Annotated[Path | None, typer.Option(help="model folder; default: the embedded model")] = None,
    exclude: Annotated[Path | None, typer.Option(help="csv of puzzles the model was trained without")] = None,
    rows: Annotated[str, typer.Option(help="which ranks of that file")] = "1-100000",
) -> None:
    """Print the figures of the model card as JSON."""
    if what != "game24":
        raise typer.BadParameter(f"{what!r} is unknown; there is game24")
    excluded = read_puzzles(exclude, rows) if exclude else []
    with load_engine(model) as engine:
        print(json.dumps(asyncio.run(measure(engine, held_out(excluded), excluded)), indent=1))


if __name__ == "__main__":
    typer.run(main)
