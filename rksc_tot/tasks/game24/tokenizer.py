"""A lossless word-level tokenizer: every number 0..199 is one token.

A token includes its leading space (" 10" and "10" are two tokens), so decoding concatenates tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rksc_tot.tasks.game24.world import LARGEST

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LABELS = ("sure", "likely", "impossible")
TRIES = tuple(f"{i}{op}{j}" for i, j in ((1, 2), (1, 3), (2, 3)) for op in "+-*/")
SPECIAL = ("<unk>", "<pad>", "<eos>")
PATTERN = r" ?[1-3][+\-*/][1-3]| ?\(left:| ?\d+| ?[a-z]+| ?[^\sa-z\d]|\s"


def vocabulary() -> list[str]:
    """All tokens in id order."""
    numbers = [str(n) for n in range(LARGEST + 1)]
    words = [" +", " -", " *", " /", " =", " (left:", ")", "\n", "steps", "solve", "try", " so", " yes", " no"]
    return [
        *SPECIAL,
        *numbers,
        *(" " + n for n in numbers),
        *words,
        *(" " + t for t in TRIES),
        *(" " + label for label in LABELS),
    ]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer that is saved with the embedded model's weights."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary())}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
