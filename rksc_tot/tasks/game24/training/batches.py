"""Batches of training documents: token ids and targets, generated in this process or in worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from rksc_tot.tasks.game24.prompts import QUESTION
from rksc_tot.tasks.game24.tokenizer import TRIES, build_tokenizer, vocabulary
from rksc_tot.tasks.game24.training.documents import Document, Generator, HeldOut

WORD = {word: i for i, word in enumerate(vocabulary())}
PAD = WORD["<pad>"]
VALUE_SHARE, SOLVE_SHARE = 0.69, 0.07  # shares of the documents; the rest have the role steps


class Batch(NamedTuple):
    """Right-padded ids ``[N, S]`` and training targets. A place is row * S + column."""

    ids: Tensor
    text: Tensor  # [t, 2] place, next token of a body
    tries: Tensor  # [12 v, 3] place of a try, its result, whether 24 can be reached after it (yes/no)
    label: Tensor  # [v, 3] place after the question, label for early lenses, label for later layers
    swap: Tensor  # [w, 2] places after questions about three numbers, in two different rows

    def to(self, device: str) -> Batch:
        """The batch on a device."""
        return Batch(*(part.to(device, non_blocking=True) for part in self))


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> Batch:
    """Tokenize documents and collect their targets."""
    question = tokenizer.encode(QUESTION)
    rows = []
    for doc in documents:
        prompt, body = tokenizer.encode(doc.prompt), tokenizer.encode(doc.body) if doc.body else []
        rows.append((len(prompt), prompt + body + question if doc.asks else prompt + body))
    width = max(len(ids) for _, ids in rows)
    text: list[tuple[int, int]] = []
    tries: list[tuple[int, int, int]] = []
    label: list[tuple[int, int, int]] = []
    hard: list[int] = []
    for row, (doc, (begin, ids)) in enumerate(zip(documents, rows, strict=True)):
        first, last = row * width, row * width + len(ids) - 1
        if doc.asks:
            places = range(last - len(TRIES), last)
            words = zip(places, doc.results, doc.verdicts, strict=True)
            tries.extend((place, WORD[result], WORD[verdict]) for place, result, verdict in words)
            label.append((last, WORD[doc.early], WORD[doc.label]))
            hard += [last] if doc.left == 3 else []
        else:
            text.extend((first + i - 1, ids[i]) for i in range(begin, len(ids)))
    padded = torch.tensor([ids + [PAD] * (width - len(ids)) for _, ids in rows])
    swap = zip(hard, hard[1:] + hard[:1], strict=True)
    parts = ((text, 2), (tries, 3), (label, 3), (list(swap), 2))
    return Batch(padded, *(torch.tensor(part, dtype=torch.long).reshape(-1, n) for part, n in parts))


class Batches(IterableDataset[Batch]):
    """Endless batches of ``documents`` documents. Each worker process has a random stream of its own."""

    def __init__(self, documents: int, unseen: HeldOut, seed: int) -> None:
        self.documents, self.unseen, self.seed = documents, unseen, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        source = Generator(random.Random(f"{self.seed}/{worker.id if worker else 0}"), self.unseen)
        tokenizer = build_tokenizer()
        values, solves = round(VALUE_SHARE * self.documents), round(SOLVE_SHARE * self.documents)
        while True:
            docs = [source.value() for _ in range(values)]
            docs += [source.solve() for _ in range(solves)]
            docs += [source.steps() for _ in range(self.documents - values - solves)]
            yield encode(tokenizer, docs)
