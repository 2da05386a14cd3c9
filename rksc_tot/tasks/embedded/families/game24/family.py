"""Model, vocabulary, documents and recipe of the family ``game24``.

The first of two stages is long. It memorises labels, so a short second stage makes the model derive the label of three numbers
from the tries of the question: hidden states are exchanged between documents, and early lenses learn random labels there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from rksc_tot.tasks.embedded.documents import Document
from rksc_tot.tasks.embedded.families.game24.documents import Generator, HeldOut, held_out
from rksc_tot.tasks.embedded.family import Family, LlamaShape, Reading, Stage
from rksc_tot.tasks.game24.tokenizer import PATTERN, WORDS
from rksc_tot.tasks.game24.world import LARGEST, State

VALUE_SHARE, SOLVE_SHARE = 0.69, 0.07  # shares of the documents; the rest have the role steps

LAYERS = 8
FIRST = Stage(
    readings=(
        Reading("text", LAYERS, LAYERS, 1.0),
        Reading("result", 2, 3, 0.7),
        Reading("verdict", 2, LAYERS - 1, 0.4),
        Reading("verdict", LAYERS, LAYERS, 2.0),
        Reading("label", 1, LAYERS - 1, 0.4),
        Reading("label", LAYERS, LAYERS, 0.7),
    ),
    steps=7_500,
    documents=290,
)
SECOND = replace(
    FIRST,
    readings=(
        Reading("text", LAYERS, LAYERS, 1.0),
        Reading("result", 2, 3, 0.7),
        Reading("verdict", 4, LAYERS - 1, 0.4),
        Reading("verdict", LAYERS, LAYERS, 2.0),
        Reading("early", 1, 3, 0.4),
        Reading("label", 4, LAYERS - 1, 0.4),
        Reading("label", LAYERS, LAYERS, 0.7),
    ),
    steps=172,  # too few to memorise new labels
    documents=58,
    peak_rate=6e-4,
    swap_before=4,
)


def batches(unseen: HeldOut, rng: random.Random, documents: int) -> Iterator[list[Document]]:
    """Lists of value documents, whole chains and paths of steps, in these shares."""
    source = Generator(rng, unseen)
    values, solves = round(VALUE_SHARE * documents), round(SOLVE_SHARE * documents)
    while True:
        found = [source.value() for _ in range(values)]
        found += [source.solve() for _ in range(solves)]
        found += [source.steps() for _ in range(documents - values - solves)]
        yield found


def family(excluded: Sequence[State] = ()) -> Family:
    """The family, see :func:`~rksc_tot.tasks.embedded.family.load_family`."""
    unseen = held_out(excluded)
    sets = {"roots": unseen.root_puzzles, "states": unseen.state_puzzles}
    return Family(
        name="game24",
        shape=LlamaShape(hidden=160, layers=LAYERS, heads=8, kv_heads=4, head_size=24, inner=800),
        stages=(FIRST, SECOND),
        words=WORDS,
        pattern=PATTERN,
        batches=partial(batches, unseen),
        held_out={name: [" ".join(map(str, puzzle)) for puzzle in puzzles] for name, puzzles in sets.items()},
        largest_number=LARGEST,
    )
