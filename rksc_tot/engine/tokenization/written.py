"""The text of a branch while tokens are appended, and the end of each token in the text.

Text is held back only while its last bytes are the beginning of a UTF-8 character that the next token may complete.
How tokens become bytes depends on the tokenizer's decoder:

=====================  ===============================================================================================
:class:`ByteLevel`     GPT-2's alphabet: every letter of a token is a byte. Invalid UTF-8 becomes U+FFFD.
:class:`ByteFallback`  Tokens are text, except for bytes such as ``<0x0A>``. In a run of bytes that is not UTF-8, every
                       byte becomes U+FFFD, also in valid characters.
:class:`DecodedText`   Any other decoder: the bytes are not known. Text that ends in U+FFFD is held back until the next
                       token or the end, even if the model sampled U+FFFD.
=====================  ===============================================================================================
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Sequence

from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.token_bytes import alphabet_bytes, single_byte

BROKEN = "\ufffd"
CONTEXT = 4  # tokens before a branch that a decoder may depend on


class Written:
    """The text of a branch.

    Attributes
    ----------
    tokens
        Some tokens before the branch, then those of the branch.
    text
        Text of the branch's tokens, without an incomplete character at the end.
    ends
        Length of the text up to the end of each token of the branch; None if a character is incomplete there.
    """

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = list(before[-CONTEXT:])
        self.text = ""
        self.ends: list[int | None] = []

    @property
    def whole(self) -> str:
        """The text if no further token comes: an incomplete character at the end becomes U+FFFD, as in ``decode``."""
        raise NotImplementedError

    def push(self, token: int) -> int:
        """Append a token; returns the length of the text that the token does not change."""
        raise NotImplementedError

    def fork(self) -> Written:
        """An independent copy."""
        other = copy.copy(self)
        other.tokens, other.ends = self.tokens.copy(), self.ends.copy()
        return other


class ByteLevel(Written):
    """Text of tokens that are bytes."""

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int]) -> None:
        super().__init__(tokenizer, before)
        self._held = b""

    @property
    def whole(self) -> str:
        """The text if no further token comes."""
        return self.text + _lossy(self._held)

    def push(self, token: int) -> int:
        """Append a token; returns the length of the text before it."""
        self.tokens.append(token)
        before, held = len(self.text), len(self._held)
        data = self._held + alphabet_bytes(str(self._tokenizer.raw.convert_ids_to_tokens(token) or ""))
        complete = data[: len(data) - _incomplete(data)]
        self.text += _lossy(complete)
        if held and len(complete) >= held and _lossy(complete) == BROKEN + _lossy(complete[held:]):
            self.ends[-1] = before + 1  # the held bytes were not a character
        self._held = data[len(complete) :]
        self.ends.append(None if self._held else len(self.text))
        return before


class DecodedText(Written):
    """Text as the tokenizer decodes it."""

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int]) -> None:
        super().__init__(tokenizer, before)
        self._context = 0  # the decoder gets tokens[_context:_settled] before the others
        self._settled = len(self.tokens)  # the text of tokens from here on may still change
        self._start = 0  # length of the text before them

    @property
    def whole(self) -> str:
        """The text if no further token comes."""
        return self.text[: self._start] + self._fresh()

    def push(self, token: int) -> int:
        """Append a token; returns the length of the text before it."""
        self.tokens.append(token)
        self.ends.append(None)
        start, fresh = self._start, self._fresh()
        if not fresh.endswith(BROKEN):
            for held in range(self._settled + 1, len(self.tokens)):
                if fresh.startswith(partial := self._fresh(held)):  # its U+FFFD is a character
                    self.ends[held - len(self.tokens) - 1] = start + len(partial)
            self._settle(len(self.tokens), fresh)
            self.ends[-1] = len(self.text)
        return start

    def _fresh(self, end: int | None = None) -> str:
        """The text of the tokens up to ``end`` that may still change."""
        known = self._tokenizer.decode(self.tokens[self._context : self._settled])
        return self._tokenizer.decode(self.tokens[self._context : end])[len(known) :]

    def _settle(self, end: int, fresh: str | None = None) -> None:
        """Make the text of the tokens up to ``end`` final. ``fresh``: what :meth:`_fresh` gives for them, if that is known."""
        self.text = self.text[: self._start] + (self._fresh(end) if fresh is None else fresh)
        self._context, self._settled, self._start = self._settled, end, len(self.text)


class ByteFallback(DecodedText):
    """Text of tokens, some of which are single bytes."""

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int]) -> None:
        # Bytes before the branch are left out: the slice may begin inside a character, which would spoil those of the branch.
        words = len(before)
        while words and self._byte(tokenizer, before[words - 1]) is not None:
            words -= 1
        super().__init__(tokenizer, before[:words] or (tokenizer.encode("a") if before else ()))
        self._run = b""  # the byte tokens at the end, which the decoder reads together

    def push(self, token: int) -> int:
        """Append a token; returns the length of the text that does not change. A byte may make bytes before it invalid."""
        self.tokens.append(token)
        start, byte = self._start, self._byte(self._tokenizer, token)
        if byte is not None:
            self.ends.append(None)
            self._run += byte
            self._read_run(over=False)
            return start
        if self._run:
            self._read_run(over=True)
            self._settle(len(self.tokens) - 1)
            self._run = b""
        self._settle(len(self.tokens))
        self.ends.append(len(self.text))
        return start

    @staticmethod
    def _byte(tokenizer: TextTokenizer, token: int) -> bytes | None:
        """The byte that a token stands for; None if the token is text."""
        return single_byte(str(tokenizer.raw.convert_ids_to_tokens(token)))

    def _read_run(self, over: bool) -> None:
        """Add the run to the text, up to its last complete character. A run that is not UTF-8 is added as a whole."""
        valid = _valid(self._run, over)
        shown = len(self._run) - (_incomplete(self._run) if valid else 0)
        self.text = self.text[: self._start] + self._fresh(self._settled + shown)
        if not valid:
            self.ends[len(self.ends) - len(self._run) :] = [None] * len(self._run)
        if shown == len(self._run):
            self.ends[-1] = len(self.text)


def written(tokenizer: TextTokenizer, before: Sequence[int]) -> Written:
    """The text of a branch after the tokens ``before``."""
    decoders = tokenizer.decoders
    if decoders == ["ByteLevel"]:
        return ByteLevel(tokenizer, before)
    return (ByteFallback if "ByteFallback" in decoders else DecodedText)(tokenizer, before)


def _lossy(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _incomplete(data: bytes) -> int:
    """Number of bytes at the end that begin a character which more bytes may complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])


def _valid(data: bytes, over: bool) -> bool:
    """Whether bytes are UTF-8. Unless ``over``, an incomplete character may be at the end."""
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(data, final=over)
    except UnicodeDecodeError:
        return False
    return True
