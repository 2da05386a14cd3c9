"""Between text and tokens: continuations, and stop strings that may span tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rksc_tot.core.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BROKEN = "�"


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


class Written:
    """The text of a branch, decoded as tokens arrive, and where in it each token ends.

    A token whose bytes do not yet make a whole character adds nothing until the character is complete.
    """

    __slots__ = ("_done", "_read", "_tokenizer", "ends", "text", "tokens")

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = list(before)  # the first ones only give context to the decoder
        self._done = 0  # decoded text of tokens[_done:_read] is known and whole
        self._read = len(self.tokens)
        self.text = ""
        self.ends: list[int] = []

    def push(self, token: int) -> int:
        """Append a token; returns the length of the text before it."""
        self.tokens.append(token)
        before = len(self.text)
        known = decode(self._tokenizer, self.tokens[self._done : self._read])
        now = decode(self._tokenizer, self.tokens[self._done :])
        if len(now) > len(known) and not now.endswith(BROKEN):
            self.text += now[len(known) :]
            self._place_held(before - len(known), now)
            self._done, self._read = self._read, len(self.tokens)
        self.ends.append(len(self.text))
        return before

    def _place_held(self, base: int, now: str) -> None:
        """Find where the tokens end that waited for this one; broken bytes turn out to be characters of their own."""
        for at in range(self._read, len(self.tokens) - 1):
            partial = decode(self._tokenizer, self.tokens[self._done : at + 1])
            if now.startswith(partial):
                self.ends[at + 1 - len(self.tokens)] = base + len(partial)

    def fork(self) -> Written:
        """An independent copy."""
        twin = Written.__new__(Written)
        twin._tokenizer, twin._done, twin._read, twin.text = self._tokenizer, self._done, self._read, self.text
        twin.tokens, twin.ends = self.tokens.copy(), self.ends.copy()
        return twin


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


def cut_at(ends: Sequence[int], text: str, length: int) -> Cut:
    """The tokens that make up the first ``length`` characters of ``text``; ``ends`` as in :class:`Written`."""
    kept, reached = 0, 0
    for end in ends:
        if reached >= length or end > length:
            break
        kept, reached = kept + 1, end
    return Cut(kept, text[reached:length])
