"""A lossless word-level tokenizer: every number 0..199 is one token.

A token includes its leading space (" 10" and "10" are two tokens), so decoding concatenates tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rksc_tot.tasks.game24.world import LARGEST

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<pad>", "<eos>")
LABELS = ("sure", "likely", "impossible")
TRIES = tuple(f"{i}{op}{j}" for i, j in ((1, 2), (1, 3), (2, 3)) for op in "+-*/")
PATTERN = r" ?[1-3][+\-*/][1-3]| ?\(left:| ?\d+| ?[a-z]+| ?[^\sa-z\d]|\s"
NUMBERS = tuple(str(n) for n in range(LARGEST + 1))
WORDS = (
    *NUMBERS,
    *(f" {n}" for n in NUMBERS),
    " +", " -", " *", " /", " =", " (left:", ")", "\n", "steps", "solve", "try", " so", " yes", " no",
    *(f" {t}" for t in TRIES),
    *(f" {label}" for label in LABELS),
)  # fmt: skip


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer that is saved with the embedded model's weights."""
    return word_tokenizer((*SPECIAL, *WORDS), PATTERN)


def word_tokenizer(vocabulary: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """A tokenizer that cuts a text by a regex and knows the words of a vocabulary, which begins with ``SPECIAL``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
