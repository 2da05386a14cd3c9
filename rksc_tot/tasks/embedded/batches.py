"""Batches of training documents: token ids and targets, generated in this process or in worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from rksc_tot.tasks.embedded.documents import Document
from rksc_tot.tasks.embedded.family import Family

TEXT = "text"  # the kind of the next tokens of a body


class Batch(NamedTuple):
    """Right-padded ids ``[N, S]`` and training targets. A place is row * S + column."""

    ids: Tensor
    targets: Mapping[str, Tensor]  # by kind: [t, 2] place, token
    swap: Tensor  # [w, 2] places after questions whose hidden states are exchanged, in two different rows

    def to(self, device: str) -> Batch:
        """The batch on a device."""
        targets = {kind: each.to(device, non_blocking=True) for kind, each in self.targets.items()}
        return Batch(self.ids.to(device, non_blocking=True), targets, self.swap.to(device, non_blocking=True))


def encode(tokenizer: PreTrainedTokenizerFast, documents: Sequence[Document], kinds: Sequence[str]) -> Batch:
    """Tokenize documents and collect their targets of these kinds."""
    word_ids = tokenizer.get_vocab()
    rows = []
    for doc in documents:
        prompt, body, question = (
            tokenizer.encode(part) if part else [] for part in (doc.prompt, doc.body, doc.question)
        )
        rows.append((len(prompt), len(body), prompt + body + question))
    width = max(len(ids) for *_, ids in rows)
    targets: dict[str, list[tuple[int, int]]] = {kind: [] for kind in (TEXT, *kinds)}  # other kinds are left out
    swapped: list[int] = []
    for row, (doc, (begin, length, ids)) in enumerate(zip(documents, rows, strict=True)):
        first, last = row * width, row * width + len(ids) - 1
        if doc.learn_body:
            targets[TEXT] += [(first + i - 1, ids[i]) for i in range(begin, begin + length)]
        for kind, back, word in doc.targets:
            if kind in targets:
                targets[kind].append((last - back, word_ids[word]))
        swapped += [last] if doc.swap else []
    pad = word_ids["<pad>"]
    padded = torch.tensor([ids + [pad] * (width - len(ids)) for *_, ids in rows])
    swap = list(zip(swapped, swapped[1:] + swapped[:1], strict=True))
    return Batch(
        padded, {kind: _pairs(found) for kind, found in targets.items()}, _pairs(swap if len(swap) > 1 else [])
    )


def _pairs(found: list[tuple[int, int]]) -> Tensor:
    return torch.tensor(found, dtype=torch.long).reshape(-1, 2)


class Batches(IterableDataset[Batch]):
    """Endless batches of ``documents`` documents. Each worker process has a random stream of its own.

    ``kinds``: the kinds of the targets that the training reads.
    """

    def __init__(self, family: Family, kinds: Sequence[str], documents: int, seed: int) -> None:
        self.family, self.kinds, self.documents, self.seed = family, kinds, documents, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        tokenizer = self.family.build_tokenizer()
        for documents in self.family.batches(rng, self.documents):
            yield encode(tokenizer, documents, self.kinds)
