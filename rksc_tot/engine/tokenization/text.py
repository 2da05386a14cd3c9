"""Between text and tokens: continuations, and stop strings that may span tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rksc_tot.core.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Text of tokens, letter by letter: special tokens shown, spaces untouched."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def encode(tokenizer: PreTrainedTokenizerBase, text: str, special: bool = False) -> list[int]:
    """Token ids; ``special`` adds what the tokenizer puts around a text.

    Raises
    ------
    EngineError
        If the text holds half of a surrogate pair, which is no character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise EngineError(
            f"{text[error.start : error.end]!r} at position {error.start} is no character", hint="repair the text"
        ) from None
    ids: list[int] = tokenizer.encode(text, add_special_tokens=special)
    return ids


def continuation(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of ``text`` as it stands after other text: no BOS, no space put in front."""
    ids = encode(tokenizer, text)
    anchor = encode(tokenizer, "\n")
    if text and decode(tokenizer, [*anchor, *ids]) != decode(tokenizer, anchor) + text:
        anchored = encode(tokenizer, "\n" + text)
        if anchored[: len(anchor)] == anchor:
            return anchored[len(anchor) :]
    return ids


class Cut(NamedTuple):
    """Where to cut: ``kept`` whole tokens, then ``rest`` (the kept part of a token the cut runs through)."""

    kept: int
    rest: str


def find_stop(text: str, searched: int, stop: Sequence[str]) -> tuple[int, int] | None:
    """(start, end) of the earliest stop string that ends after ``searched``, the longest if several start there."""
    found: tuple[int, int] | None = None
    for string in stop:
        at = text.find(string, max(0, searched - len(string) + 1))
        if at >= 0 and (found is None or (at, -len(string)) < (found[0], found[0] - found[1])):
            found = (at, at + len(string))
    return found


def leading_stops(text: str, stop: Sequence[str]) -> int:
    """Length of the stop strings that a text begins with, with the white space before each: where its first words begin."""
    begin = 0
    while (found := find_stop(text[begin:], 0, stop)) and not text[begin : begin + found[0]].strip():
        begin += found[1]
    return begin


def find_end(text: str, searched: int, stop: Sequence[str], skip_blank: bool) -> tuple[int, int] | None:
    """The stop string that ends a thought, as :func:`find_stop`; with ``skip_blank``, not one that the text begins with."""
    found = find_stop(text, searched, stop)
    if found is None or not skip_blank or found[0] >= (begin := leading_stops(text, stop)):
        return found
    later = find_stop(text[begin:], 0, stop)
    return None if later is None else (begin + later[0], begin + later[1])


def cut_at(ends: Sequence[int | None], text: str, length: int) -> Cut:
    """The tokens that make up the first ``length`` characters of ``text``; ``ends`` as in ``Written``."""
    kept, reached = 0, 0
    for count, end in enumerate(ends, 1):
        if reached >= length or (end is not None and end > length):
            break
        if end is not None:
            kept, reached = count, end
    return Cut(kept, text[reached:length])
