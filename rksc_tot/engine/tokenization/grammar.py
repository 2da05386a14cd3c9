"""The tokens that may come next under a constraint, found by ``llguidance`` (extra ``structured``).

A token is allowed if some text that begins with the text so far and the token satisfies the constraint. End of text is allowed
where the text so far satisfies it. Control tokens are not allowed, unless a grammar names them.
"""

from __future__ import annotations

import json
import re
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rksc_tot.core.errors import ConstraintError, MissingExtra
from rksc_tot.core.task import Constraint
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.token_bytes import token_bytes

COMPILED = 256  # constraints that are kept
SEARCHED = 256  # most tokens of a text that the search for a short one tries
OPTIONS = '%llguidance {"no_forcing": true}\n'  # the model chooses the tokens of texts that the grammar prescribes
ASCII = "dws"  # classes of regular expressions that hold ASCII only, since Unicode versions differ
JSON_OPTIONS = {"whitespace_pattern": "[ ]?"}  # unlimited white space would let a small model write nothing else


class GrammarMatcher:
    """The state of one text under a constraint.

    Attributes
    ----------
    allowed
        Whether each token of the vocabulary may come next ``[V]``.
    accepting
        Whether the text so far satisfies the constraint.
    """

    def __init__(self, matcher: Any, eos: NDArray[np.int64], size: int) -> None:
        """``matcher``: of llguidance; ``eos``: ids of the end-of-text tokens; ``size``: of the vocabulary."""
        self._matcher = matcher
        self._eos = eos
        self._size = size
        self._read()

    def _read(self) -> None:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        failed = self._matcher.is_error()
        self.accepting: bool = not failed and self._matcher.is_accepting()
        self.allowed: NDArray[np.bool_] = np.unpackbits(bits, bitorder="little")[: self._size].view(np.bool_)
        if failed:
            self.allowed = np.zeros(self._size, np.bool_)
        self.allowed[self._eos] = False
        self._more = bool(self.allowed.any())
        self.allowed[self._eos] = self.accepting

    @property
    def complete(self) -> bool:
        """Whether the text satisfies the constraint and no longer text does."""
        return self.accepting and not self._more

    @property
    def stuck(self) -> bool:
        """Whether the text does not satisfy the constraint and no token can follow."""
        return not self.accepting and not self._more

    @property
    def can_end(self) -> bool:
        """Whether the text may end here: it is complete, or end of text is allowed."""
        return self.accepting and (not self._more or len(self._eos) > 0)

    @property
    def error(self) -> str:
        """Why llguidance gave up; empty if it did not."""
        return sentence_of(self._matcher.get_error()) if self._matcher.is_error() else ""

    def push(self, token: int) -> None:
        """Append a token that is allowed and is no end of text."""
        self._matcher.consume_token(token)
        self._read()

    def fork(self) -> GrammarMatcher:
        """An independent copy."""
        other = object.__new__(GrammarMatcher)
        other._matcher, other._eos, other._size = self._matcher.deep_copy(), self._eos, self._size
        other.accepting, other.allowed, other._more = self.accepting, self.allowed, self._more
        return other


class Grammars:
    """Compiled constraints for one model. Safe to use from several threads.

    Parameters
    ----------
    tokenizer
        The model's tokenizer.
    vocabulary
        Size of the model's vocabulary.
    eos
        Ids of the end-of-text tokens.
    """

    def __init__(self, tokenizer: TextTokenizer, vocabulary: int, eos: frozenset[int]) -> None:
        self._text = tokenizer
        self._size = vocabulary
        self._eos = np.array(sorted(token for token in eos if token < vocabulary), np.int64)
        self._is_eos = np.zeros(vocabulary, np.bool_)
        self._is_eos[self._eos] = True
        self._compiled = lru_cache(COMPILED)(self._compile)

    def matcher(self, constraint: Constraint, most: int) -> GrammarMatcher:
        """The state of the empty text under a constraint. ``most``: tokens that the text may have.

        Raises
        ------
        ConstraintError
            If the constraint is invalid or allows no text, or the shortest text found has more tokens than ``most``.
        MissingExtra
            Without ``llguidance``.
        """
        start, shortest = self._compiled(constraint)
        if shortest is not None and shortest > most:
            raise ConstraintError(
                f"the shortest text found that satisfies the {constraint.name} has {shortest} tokens, the limit is {most}",
                hint="raise max_thought_tokens, or ask for less",
            )
        return start.fork()

    def _compile(self, constraint: Constraint) -> tuple[GrammarMatcher, int | None]:
        """The state of the empty text, and the tokens of a short text that satisfies the constraint, if one was found."""
        library, tokens = self._library
        matcher = library.LLMatcher(
            tokens,
            library.LLMatcher.grammar_from_lark(OPTIONS + _lark(library, constraint)),
            log_level=0,
            limits=library.LLParserLimits(verbose_errors=False),
        )
        wrong = f"the {constraint.name} of a constraint cannot be used: "
        if matcher.is_error():
            raise ConstraintError(wrong + sentence_of(matcher.get_error()), hint="see docs/structured.md")
        start = GrammarMatcher(matcher, self._eos, self._size)
        if start.stuck:
            none = not start.error or start.error.startswith("NoExtension")
            why = "no text that this model's tokens can spell satisfies it" if none else start.error
            raise ConstraintError(wrong + why, hint="see docs/structured.md")
        if start.complete:
            raise ConstraintError(wrong + "it allows only the empty text", hint="allow more")
        return start, self._shortest(start)

    def _shortest(self, start: GrammarMatcher) -> int | None:
        """Tokens of the shortest complete text that greedy choices of tokens lead to; None if they lead to none."""
        best: int | None = None
        for rank in self._tokens[1]:
            state = start.fork()
            for length in range(1, SEARCHED if best is None else best):
                ids = np.flatnonzero(state.allowed & ~self._is_eos)
                if not len(ids):
                    break
                state.push(int(ids[rank[ids].argmin()]))
                if state.can_end:
                    best = length
                    break
        return best

    @cached_property
    def _library(self) -> tuple[Any, Any]:
        """The module llguidance, and its view of the tokenizer."""
        if find_spec("llguidance") is None:
            raise MissingExtra("a constraint needs llguidance", hint="pip install 'rksc_tot[structured]'")
        import llguidance

        vocabulary: Any = self._tokens[0]
        return llguidance, llguidance.LLTokenizer(vocabulary, n_vocab=self._size + 1)

    @cached_property
    def _tokens(self) -> tuple[_Vocabulary, list[NDArray[np.int64]]]:
        """The vocabulary, and ranks of its tokens: those that close a string (or bracket) first, then long ones."""
        data = token_bytes(self._text, self._size)
        control = sorted({*self._text.control_tokens, *map(int, self._eos)} & set(range(self._size)))
        length = np.array([len(one) for one in data])
        spaces = np.array([one.isspace() for one in data])
        ranks = []
        for ends in ((b'"', b"}", b"]"), (b'"',), ()):
            closes = np.array([one[-1:] in ends and b"\\" not in one for one in data])
            ranks.append(np.argsort(np.lexsort((np.where(closes, length, -length), spaces, ~closes))))
        return _Vocabulary(data, control), ranks


class _Vocabulary:
    """A vocabulary as llguidance wants it. The end of text is a token of its own after the others."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, data: list[bytes], control: list[int]) -> None:
        self.tokens = [*data, b""]
        self.eos_token_id = len(data)
        self.special_token_ids = [*control, len(data)]

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a text; never needed, since no text is forced."""
        raise NotImplementedError


def _lark(library: Any, constraint: Constraint) -> str:
    """A constraint as a grammar of llguidance."""
    if constraint.kind == "json_schema":
        schema = {**json.loads(constraint.source), "x-guidance": JSON_OPTIONS}
        return f"start: %json {json.dumps(schema, ensure_ascii=False)}"
    if constraint.kind == "regex":
        return f"start: /{library.regex_to_lark(constraint.source, ASCII)}/"
    if "%llguidance" in constraint.source:
        raise ConstraintError("a grammar sets options by %llguidance", hint="leave them out")
    return constraint.source


def sentence_of(error: str) -> str:
    """The part of a message of llguidance that says what is wrong."""
    lines = [line.strip() for line in error.partition("<")[0].splitlines() if line.strip()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    first = re.sub(r"^(at )?\d+\(\d+\): |failed to compile JSON schema: ", "", lines[0] if lines else error.strip())
    return (named or [re.sub(r"^(at )?\d+\(\d+\): |failed to compile JSON schema: ", "", first)])[0][:300]
