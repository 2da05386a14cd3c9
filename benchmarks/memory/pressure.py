"""Compression of KV: how little memory is enough, what every policy loses, and which settings stay exact.

``python -m benchmarks pressure [--puzzles FILE --rows 901-1000] [--json] [--quick]``. Without a file, the games are a hundred
held-out roots. ``--model FOLDER`` measures a real model on long texts instead (last paragraph). No figure is a time, so settings
run in parallel processes, one for each core, with one thread each.

*Memory.* Two breadth-first searches. ``games``: game of 24 with the embedded model and its usual settings, every puzzle with
seeds 0, 1 and 2 (``--quick``: 0), 300 searches a setting. ``thoughts``: 40 problems, four levels of thoughts of 50 tokens; the
answer recites a value drawn in each thought on its path, which the end of every later thought states again, and a digit of the
prompt. The model of ``thoughts`` has hand-written weights (``benchmarks/memory/recall.py``). Every search runs alone on its
engine. *Full retention* evicts nothing. Its peak is the most tokens resident at a time, scratch included, as mean over searches
(``full_tokens``).

``curve.SUITE.NAME.LEVEL``: LEVEL is the engine's KV budget as a share of that peak, or, for path policies, the tokens of a path
besides its last few (4 in ``games``, 16 elsewhere). ``solved``: with its Wilson interval. ``memory``: peak over that of full
retention. ``recomputed``: tokens computed again, a search. ``inexact``: share of nodes with ``exact=False``. ``unfinished``:
searches without enough room. Names: ``arborkv`` restores full KV before it continues, so it is exact; ``arborkv_lossy`` does not
restore it; ``_tail2`` always keeps the last 2 tokens of a thought instead of 8. Without a compression policy, for comparison:
``evict_rsbcm`` is plain eviction, which is exact; ``evict_none`` drops only pruned thoughts. ``_unpinned``: the prompt may be
dropped as well.

``peak_reduction.NAME``: peak of full retention over the policy's peak, at the smallest budget at which at most one puzzle less is
solved, as mean over seeds; 1: no such budget. It is at most that of the tightest budget tried. ``solved_delta.NAME``: puzzles
solved there minus those of full retention, as mean over seeds. ``thoughts.``: the same for ``thoughts``.

*Recall.* ``paths``: the hand-written model generates 300 tokens on one path, greedily, and is then asked for a fact of the
prompt, a fact stated once, and four facts stated again every 16 to 128 lines. ``solved`` counts these questions except for the
fact stated once. ``recall.NAME.pinned.KIND``: share of right answers at a budget of 64 tokens. ``_one_set``: one draw for all
heads; in this model one head in four with the fact is enough, so separate draws are better. ``_kernel1``: attention is not
smoothed over neighbours. ``finding.``: the claims of Random Attention (2609.03430), compared with these intervals, and the first
claim with those of the searches as well.

*Lossless.* Every policy drafts, and all drafts are verified: searches of ``thoughts`` node by node, and chains of the embedded
model, sampled and greedy, token by token with log-probabilities, in fp32. ``branches``: number for each policy. ``acceptance``:
share of draft tokens that are accepted, with ample room; ``_tight``: within a quarter of the KV of full retention, with the
offload tier, where drafts are also dropped for lack of room. ``passes_saved``: share of passes over full KV. ``passes_in_all``:
all passes with drafts over those without. ``overruns``: passes after which resident tokens, counted segment by segment, or the
arena's tensors exceeded the budget. ``identity``: a policy that drops nothing.

*Within a budget.* ``needs_bytes``: peak KV of a search of ``thoughts``, which gets a quarter of it (``budget_bytes``).
``within.METHOD``: whether the search finishes with the same tree. ``allocated_bytes``: size of the arena's tensors, which begin
at 1024 tokens and double up to the budget. ``growing_bytes``: old and new tensors together while they grow.

Expected results. Exact settings lose no accuracy, so their memory goes down to a single expansion, and they pay by recomputation:
``arborkv`` pays more than plain eviction, since a thought without some of its tokens must be computed again to be exact, unless
the offload tier copies it back. Dropping only pruned thoughts halves the memory of most games, not of all, so some games do not
finish at that budget. Path policies save little in a tree of short paths, whose memory is in its breadth. On one long path random
selection is best, as the paper says. If paths are short and few tokens are dropped, attention-based policies are better, and a
pinned prompt that fills the budget leaves no room for other tokens.

*With a model.* The model generates eight texts of up to 384 tokens on full KV. Each policy reads these texts, 32 tokens at a
time, and is compared after each part. NAME.BUDGET has ``kl``, the mean KL(full || compressed) of the next token in nats, and
``same_likeliest``, over ``positions`` positions. ``further.NAME.BUDGET``: the KL of ``random_attention`` minus that of the policy
at the same positions, in nats, with an interval by resampling texts; below 0, ``random_attention`` is better. ``finding.``: the
claims compared with these intervals.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.common.report import Quick, Report
from benchmarks.common.workers import Workers, workers
from benchmarks.memory import lossless as pressure_lossless
from benchmarks.memory import paths as pressure_paths
from benchmarks.memory import thoughts as pressure_thoughts
from benchmarks.memory.curves import FULL, Curves, Setting, path_settings, run, tree_settings
from rksc_tot.evaluation.problems import choose_problems

Shares = dict[str, tuple[float, ...]]
GAMES: Shares = {
    "evict_none": (0.5,), "evict_rsbcm": (0.25, 0.17), "arborkv": (0.25, 0.17),
    "arborkv_lossy": (0.5, 0.25), "arborkv_lossy_tail2": (0.5, 0.25),
}  # fmt: skip
THOUGHTS: Shares = {
    "evict_none": (0.5,), "evict_rsbcm": (0.25, 0.17), "arborkv": (0.25, 0.17),
    "arborkv_lossy": (0.5, 0.25, 0.17), "arborkv_lossy_tail2": (0.25,),
}  # fmt: skip
SHORTLY: Shares = {"evict_rsbcm": (0.25,), "arborkv": (0.25,), "arborkv_lossy": (0.25,)}
PATH = {"games": ((8, 16), (8,), 4), "thoughts": ((32, 48, 64), (48,), 16)}  # pinned, unpinned, recent
OTHERS = ("snapkv", "snapkv_kernel1", "streaming")


def measure(puzzles: Path | None, rows: str | None, quick: bool, workers: Workers) -> dict[str, Any]:
    """The figures of games, thoughts and paths."""
    games = choose_problems(file=puzzles, rows=rows) if puzzles else choose_problems(held_out=True)
    curves = [
        Curves("games", games[:4] if quick else games, seeds=1 if quick else 3),
        Curves("thoughts", pressure_thoughts.problems(2 if quick else 40)),
    ]
    run([(curve, FULL) for curve in curves], workers)
    run([(curve, setting) for curve in curves for setting in settings(curve, quick)], workers)
    budgets = (pressure_paths.STRATEGY_SETTINGS,) if quick else pressure_paths.BUDGETS
    paths = pressure_paths.figures(4 if quick else 60, budgets, workers)
    searched: dict[str, Any] = {}
    for curve in curves:
        searched |= curve.figures()
    return searched | paths | findings(searched | paths) | lossless(games, quick, workers)


def settings(curve: Curves, quick: bool) -> list[Setting]:
    """The settings of a curve, given the peak of full retention."""
    pinned, unpinned, recent = PATH[curve.suite]
    if quick:
        return [*tree_settings(curve.peak, SHORTLY), *path_settings(pinned[-1:], recent)]
    of_tree = tree_settings(curve.peak, GAMES if curve.suite == "games" else THOUGHTS)
    return [*of_tree, *path_settings(pinned, recent), *path_settings(unpinned, recent, pinned=False)]


def lossless(games: list[str], quick: bool, workers: Workers) -> dict[str, Any]:
    """Every policy on both kinds of work, and a search within a quarter of its KV."""
    work = {
        "searches": pressure_thoughts.problems(1 if quick else 2),
        "chains": games[: 6 if quick else 12],
    }
    which = [
        (name, kind, problems)
        for name in (pressure_lossless.POLICIES[::5] if quick else pressure_lossless.POLICIES)
        for kind, problems in work.items()
    ]
    found = workers.each(pressure_lossless.compared, which)
    by_policy = {(name, kind): each for (name, kind, _), each in zip(which, found, strict=True)}
    return pressure_lossless.figures(by_policy) | pressure_lossless.within(work["searches"][0], workers)


def findings(found: dict[str, Any]) -> dict[str, str]:
    """The claims about Random Attention, compared with the intervals at every budget."""
    pinned, free = (found[f"recall.random_attention.{which}"] for which in ("pinned", "unpinned"))
    usual, loose = (
        found[f"curve.paths.random_attention{kind}.{pressure_paths.STRATEGY_SETTINGS}"] for kind in ("", "_unpinned")
    )
    collapses = pinned["prompt"] > 2 * free["prompt"]
    return {
        "finding.random_pinned_at_least_snapkv_and_streaming": "; ".join(
            f"{suite}: {said}" for suite in ("paths", "games", "thoughts") if (said := _ranked(found, suite))
        ),
        "finding.collapses_without_the_pin": (
            f"{'reproduced' if collapses else 'refuted'} for what only the prompt says: known in {pinned['prompt']:.0%}, without"
            f" the pin in {free['prompt']:.0%}; of all questions {usual['solved']:.0%} and {loose['solved']:.0%}"
        ),
        "finding.stated_once_is_lost": (
            f"{'reproduced' if pinned['once'] < 0.5 else 'refuted'}: known in {pinned['once']:.0%} after 300 tokens"
        ),
    }  # fmt: skip


def _ranked(found: dict[str, Any], suite: str) -> str:
    """Whether random selection with a pinned prompt is at least as good as the others in a suite, by budget."""
    said = []
    for name, ours in found.items():
        before, _, budget = name.rpartition(".")
        if before == f"curve.{suite}.random_attention":
            others = [point for other in OTHERS if (point := found.get(f"curve.{suite}.{other}.{budget}"))]
            better = all(ours["solved"] >= other["solved"] for other in others)
            worse = any(ours["solved.high"] < other["solved.low"] for other in others)
            nothing = not any(point["solved"] for point in (ours, *others))
            verdict = "reproduced" if better else "refuted" if worse else "not told apart"
            said.append(f"{'nothing is solved by any' if nothing else verdict} at {budget}")
    return ", ".join(said)


def main(
    quick: Quick = False,
    puzzles: Annotated[Path | None, typer.Option(help="csv of puzzles to search")] = None,
    rows: Annotated[str | None, typer.Option(help="ranks of puzzles in that file")] = None,
    model: Annotated[str | None, typer.Option(help="folder of a model that reads long texts")] = None,
) -> Report:
    """Measure compression."""
    logging.getLogger("rksc_tot").setLevel(
        logging.ERROR
    )  # hides warnings about odd labels on lossy KV, which is measured
    if model:
        from benchmarks.memory.model import figures as on_model

        return Report(on_model(model, quick))
    torch.set_num_threads(1)
    with workers() as pool:
        return Report(measure(puzzles, rows, quick, pool))
