"""Families: what the training script must know of a task to train its embedded model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.embedded.documents import Document
from rksc_tot.tasks.game24.tokenizer import SPECIAL, word_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FAMILIES: Mapping[str, str] = {
    "game24": "rksc_tot.tasks.embedded.families.game24.family",
    "sudoku4": "rksc_tot.tasks.embedded.families.sudoku4",
    "countdown": "rksc_tot.tasks.embedded.families.countdown",
}


@dataclass(frozen=True)
class LlamaShape:
    """The size of a Llama."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int


@dataclass(frozen=True)
class Reading:
    """After which layers targets of a kind are read, and the weight of their loss. The kind ``text``: tokens of bodies."""

    kind: str
    first: int
    last: int
    weight: float


@dataclass(frozen=True)
class Stage:
    """Settings of one stage of a training.

    * ``steps``: steps at most. ``documents``: documents a step.
    * ``peak_rate``, ``floor``, ``flat``, ``warmup_steps``: the learning rate rises to its peak, stays for the share
      ``flat`` of the run, then falls to ``floor`` times the peak.
    * ``swap_before``: the layer before which hidden states are exchanged, see ``Document.swap``. None: they are not.
    """

    readings: tuple[Reading, ...]
    steps: int
    documents: int
    peak_rate: float = 2e-3
    floor: float = 0.02
    flat: float = 0.4
    warmup_steps: int = 200
    weight_decay: float = 0.05
    swap_before: int | None = None


@dataclass(frozen=True)
class Family:
    """A task with an embedded model.

    * ``name``: of the family; its weights are named ``embedded:NAME``.
    * ``shape``, ``stages``: model and training.
    * ``words``: all tokens besides ``SPECIAL``, a leading space included. ``pattern``: the regex that cuts a text into tokens.
    * ``largest_number``: the tokens ``"0"`` to ``"N"`` and ``" 0"`` to ``" N"`` begin as Fourier features of their numbers. None:
      no number is special.
    * ``batches``: endless lists of that many random documents.
    * ``held_out``: problems that training does not contain, by name of the set.
    """

    name: str
    shape: LlamaShape
    stages: tuple[Stage, ...]
    words: tuple[str, ...]
    pattern: str
    batches: Callable[[random.Random, int], Iterator[list[Document]]]
    held_out: Mapping[str, Sequence[str]]
    largest_number: int | None = None

    @property
    def vocabulary(self) -> list[str]:
        """All tokens in id order."""
        return [*SPECIAL, *self.words]

    def build_tokenizer(self) -> PreTrainedTokenizerFast:
        """A lossless word-level tokenizer. A token includes its leading space, so decoding concatenates tokens."""
        return word_tokenizer(self.vocabulary, self.pattern)


def load_family(name: str, excluded: Sequence[tuple[int, ...]] = ()) -> Family:
    """The family of that name. ``excluded``: further puzzles that its training must not contain.

    Raises
    ------
    ConfigError
        If there is no such family, or it cannot exclude puzzles.
    """
    if name not in FAMILIES:
        raise ConfigError(f"there is no family {name!r}", hint=f"there are {', '.join(FAMILIES)}")
    family: Family = import_module(FAMILIES[name]).family(excluded)
    return family
