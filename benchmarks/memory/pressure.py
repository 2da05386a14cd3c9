"""KV under pressure: how little memory is enough, what every compression policy loses, and what comes out exact all the same.

``python -m benchmarks pressure [--puzzles FILE --rows 901-1000] [--json] [--quick]``; without a file the games are a hundred
held-out roots. ``--model FOLDER`` measures a real model instead, on long texts of its own (last paragraph). Nothing here is a
time, so settings run in processes of their own, as many at once as there are cores, one thread each.

*Memory.* Two searches, breadth first. ``games``: game of 24 with the embedded model and its usual settings, every puzzle with
seeds 0, 1 and 2 (``--quick``: 0), 300 searches a setting. ``thoughts``: 40 problems, four levels of thoughts of 50 tokens; the
answer recites what was drawn in each thought on its path, stated again at the end of every thought since, and a digit of the
prompt that nothing else has read. Its model's weights were written by hand to do that and nothing else
(``benchmarks/memory/recall.py`` says how). Every search is alone on its engine. *Full retention* evicts nothing; its peak is
the most tokens resident at a time, scratch included, the mean over searches (``full_tokens``).

``curve.SUITE.WHO.LEVEL``: LEVEL is the engine's KV budget, of that peak, or, of policies that hold paths, tokens of a path
beside its last few (4 in ``games``, 16 elsewhere). ``solved`` with its Wilson interval; ``memory``: peak over that of full
retention; ``recomputed``: tokens computed again, a search; ``inexact``: share of the nodes that say so; ``unfinished``: searches
for which there was no room. WHO: ``arborkv`` makes whole what it reduced before it goes on, so it is exact; ``arborkv_lossy``
does not; ``_tail2`` keeps for certain the last 2 tokens of a thought instead of 8. Without any compression policy,
for comparison:
``evict_rsbcm``, plain eviction, exact as well; ``evict_none`` only lets go of what the search has pruned. ``_unpinned``: the
prompt may go, too.

``peak_reduction.WHO``: peak of full retention over WHO's, at the smallest budget tried at which one puzzle fewer is solved at
most, the mean over seeds; 1: at none. It is no more than the tightest budget that was tried. ``solved_delta.WHO``: puzzles solved
there beyond full retention, the mean over seeds. ``thoughts.``: the same of the other search.

*What is lost.* ``paths``: the hand-written model writes 300 tokens on one path, without chance, and is then asked for a fact of
the prompt, one stated once, and four that are stated again every 16 to 128 lines; ``solved`` counts these questions but for
the one about what was stated once. ``recall.WHO.pinned.KIND``: share that is right at a budget of 64 tokens. ``_one_set``: one
draw for all heads; in this model one head in four that still has a fact suffices, which is what separate draws gain by.
``_kernel1``: attention is not smoothed over neighbours. ``finding.``: the claims of Random Attention (2609.03430), held against
these intervals, and the first of them against those of the searches, too.

*Lossless.* Every policy drafts, and all is verified: searches of ``thoughts`` node by node, and chains of the embedded model, hot
and greedy, token by token, log-probabilities included, in fp32. ``branches``: for each policy. ``acceptance``: of drafted tokens,
with room enough; ``_tight``: within a quarter of what full retention needs, with the offload tier, where drafts are also void
because room was short. ``passes_saved``: of the passes over full KV; ``passes_in_all``: all passes with drafts over those
without. ``overruns``: passes after which tokens, counted segment by segment, or the tensors they lie in exceeded the budget.
``identity``: a policy that drops nothing.

*Within a budget.* ``needs_bytes``: what a search of ``thoughts`` holds at its peak; it gets a quarter, ``budget_bytes``.
``within.HOW``: whether it finishes, with the same tree. ``allocated_bytes``: of the tensors; they are made for 1024 tokens, then
doubled, and never made larger than the budget; ``growing_bytes``: the old and the new ones together, while that lasts.

What to expect. What is exact has no accuracy to lose, so it goes down to where a single expansion fits no more, and costs what
is computed again: of ``arborkv`` more than of plain eviction, since a thought that lacks some tokens is as good as gone when it
is to be exact, unless the offload tier copies it back. Only letting go of what was pruned halves the memory of most of the
games, not of all, so some of them do not finish then. Policies that hold paths do little for a tree of short paths: its memory is
in its breadth. On one long path chance does best, as the paper says; where paths are short and little of them goes, attention
knows better, and a pinned prompt that fills the budget leaves room for nothing else.

*With a model.* It writes eight texts of up to 384 tokens on full KV. Each policy reads these, 32 tokens at a time, and is
compared after each part: WHO.BUDGET has ``kl``, the mean KL(full || reduced) of the next token in nats, and
``same_likeliest``, at as many ``positions``. ``further.WHO.BUDGET``: how much further off ``random_attention`` is than WHO
at the same positions, nats, with the interval that resampling the texts gives; below 0 it is nearer. ``finding.``: the
claims held against that.
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
    """The figures without a model of one's own."""
    games = choose_problems(file=puzzles, rows=rows) if puzzles else choose_problems(held_out=True)
    curves = [
        Curves("games", games[:4] if quick else games, seeds=1 if quick else 3),
        Curves("thoughts", pressure_thoughts.problems(2 if quick else 40)),
    ]
    run([(curve, FULL) for curve in curves], workers)
    run([(curve, setting) for curve in curves for setting in settings(curve, quick)], workers)
    budgets = (pressure_paths.USUAL,) if quick else pressure_paths.BUDGETS
    paths = pressure_paths.figures(4 if quick else 60, budgets, workers)
    searched: dict[str, Any] = {}
    for curve in curves:
        searched |= curve.figures()
    return searched | paths | findings(searched | paths) | lossless(games, quick, workers)


def settings(curve: Curves, quick: bool) -> list[Setting]:
    """What the problems of a curve are searched in, once it is known what full retention holds."""
    pinned, unpinned, recent = PATH[curve.suite]
    if quick:
        return [*tree_settings(curve.peak, SHORTLY), *path_settings(pinned[-1:], recent)]
    of_tree = tree_settings(curve.peak, GAMES if curve.suite == "games" else THOUGHTS)
    return [*of_tree, *path_settings(pinned, recent), *path_settings(unpinned, recent, pinned=False)]


def lossless(games: list[str], quick: bool, workers: Workers) -> dict[str, Any]:
    """Every policy on both kinds of work, and a search within a quarter of what it needs."""
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
    """The claims about Random Attention, held against the intervals at every budget that was tried."""
    pinned, free = (found[f"recall.random_attention.{which}"] for which in ("pinned", "unpinned"))
    usual, loose = (found[f"curve.paths.random_attention{kind}.{pressure_paths.USUAL}"] for kind in ("", "_unpinned"))
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
    """Whether random, the prompt pinned, is at least as good as the others in that suite, budget by budget."""
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
    rows: Annotated[str | None, typer.Option(help="which ranks of that file")] = None,
    model: Annotated[str | None, typer.Option(help="folder of a model to read long texts with")] = None,
) -> Report:
    """Measure, print the figures."""
    logging.getLogger("rksc_tot").setLevel(logging.ERROR)  # that lossy KV makes the model say odd things is measured
    if model:
        from benchmarks.memory.model import figures as on_model

        return Report(on_model(model, quick))
    torch.set_num_threads(1)
    with workers() as pool:
        return Report(measure(puzzles, rows, quick, pool))
