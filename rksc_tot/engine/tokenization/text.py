"""Text to tokens and back. No text becomes a control token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from rksc_tot.core.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ANCHORS = ("\n", "a", ".")
"""Texts to tokenise a continuation behind, where the tokenizer treats the beginning of a text in another way."""


class TextTokenizer:
    """A model's tokenizer for text.

    A text that contains the name of a control token, such as ``<|im_end|>``, is cut after the first character of the name, and
    its pieces are tokenised separately. Other text is tokenised unchanged. (The tokenizer's option ``split_special_tokens`` is
    not used, since it changes the tokenizer's state, which other threads may use at the same time.)

    Parameters
    ----------
    raw
        The model's tokenizer.
    markers
        Further names that are cut as those of control tokens are.

    Attributes
    ----------
    raw
        The model's tokenizer.
    """

    def __init__(self, raw: PreTrainedTokenizerBase, markers: Sequence[str] = ()) -> None:
        self.raw = raw
        self._markers = markers

    def decode(self, ids: Sequence[int]) -> str:
        """Exact text of tokens: control tokens are shown, spaces are not cleaned up."""
        return str(self.raw.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text.

        Raises
        ------
        EngineError
            If the text contains half of a surrogate pair, which is not a character.
        """
        return self.encode_pieces(self.pieces(text))

    def encode_prompt(self, text: str) -> list[int]:
        """Tokens of a text with the tokens that the tokenizer puts before every text (BOS), without EOS."""
        first, *rest = self.pieces(text)
        ids = self._encode(first, special=True)
        if ids and ids[-1] == self.raw.eos_token_id is not None and not first.endswith(str(self.raw.eos_token)):
            ids.pop()
        return [*ids, *self._after(rest)]

    def continuation(self, text: str) -> list[int]:
        """Tokens of a text after other text: without BOS, and without an added space."""
        return self._after(self.pieces(text))

    def template_text(self, text: str) -> list[int]:
        """Tokens of a text of the chat template after other text: names of control tokens become control tokens."""
        return self._continue(text)

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Tokens of pieces, tokenised separately. Names of control tokens in them become control tokens."""
        return [*self._encode(pieces[0]), *self._after(pieces[1:])]

    def pieces(self, text: str) -> list[str]:
        """The text, cut so that no piece contains the name of a control token. Names of one character are not cut."""
        names, lengths, first = self._control_names
        found = (match.start() for match in first.finditer(text))
        cuts = [at + 1 for at in found if any(text[at : at + length] in names for length in lengths)]
        return [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]

    @cached_property
    def decoders(self) -> list[str]:
        """The kinds of steps in which the tokenizer decodes; empty if it does not say."""
        decoder = getattr(getattr(self.raw, "backend_tokenizer", None), "decoder", None)
        if decoder is None:
            return []
        try:
            state = json.loads(decoder.__getstate__())
        except Exception:  # a decoder written in Python has no state
            return []
        return [str(part["type"]) for part in state.get("decoders", [state])]

    @cached_property
    def control_tokens(self) -> frozenset[int]:
        """Ids of the control tokens."""
        added = (token for token, about in self.raw.added_tokens_decoder.items() if about.special)
        return frozenset({*self.raw.all_special_ids, *added})

    @cached_property
    def _control_names(self) -> tuple[frozenset[str], frozenset[int], re.Pattern[str]]:
        """Names of the control tokens, their lengths, and a pattern for their first characters."""
        added = (token.content for token in self.raw.added_tokens_decoder.values() if token.special)
        names = frozenset(
            name for name in map(str, [*self.raw.all_special_tokens, *added, *self._markers]) if len(name) > 1
        )
        first = re.compile("|".join(sorted({re.escape(name[0]) for name in names})) or "(?!)")
        return names, frozenset(map(len, names)), first

    def _after(self, pieces: Iterable[str]) -> list[int]:
        ids: list[int] = []
        for piece in pieces:
            ids += self._continue(piece)
        return ids

    def _continue(self, piece: str) -> list[int]:
        ids = self._encode(piece)
        inexact = ids  # where the tokenizer normalises the text, no tokens decode to it
        for text in ANCHORS if piece else ():
            anchor = self._encode(text)
            whole = self.decode(anchor) + piece
            if self.decode([*anchor, *ids]) == whole:
                return ids
            anchored = self._encode(text + piece)
            if anchored[: len(anchor)] == anchor:
                if self.decode(anchored) == whole:
                    return anchored[len(anchor) :]
                inexact = anchored[len(anchor) :] if inexact is ids else inexact
        return inexact

    def _encode(self, piece: str, special: bool = False) -> list[int]:
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise EngineError(
                f"{piece[error.start : error.end]!r} at position {error.start} is not a character",
                hint="repair the text",
            ) from None
        ids: list[int] = self.raw.encode(piece, add_special_tokens=special)
        return ids
