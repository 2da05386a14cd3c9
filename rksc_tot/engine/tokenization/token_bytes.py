"""The bytes that each token adds to a text."""

from __future__ import annotations

import random
import re
from functools import cache

from rksc_tot.core.errors import ConstraintError
from rksc_tot.engine.tokenization.text import TextTokenizer

TRIALS = 64  # random texts that prove the bytes of an unknown decoder
LENGTH = 12  # tokens of each
SPACE = "\u2581"  # SentencePiece's character for a space


def token_bytes(tokenizer: TextTokenizer, vocabulary: int) -> list[bytes]:
    """The bytes of every token of the vocabulary inside a text; empty for ids that the tokenizer does not have.

    The text of a path is the text of its tokens' bytes one after another.

    Raises
    ------
    ConstraintError
        If the text of a token depends on the tokens around it.
    """
    raw = tokenizer.raw
    names = [str(name or "") for name in raw.convert_ids_to_tokens(list(range(min(len(raw), vocabulary))))]
    unused = [b""] * (vocabulary - len(names))
    if tokenizer.decoders == ["ByteLevel"]:
        return [*map(alphabet_bytes, names), *unused]
    for read in (_spelled, _decoded):
        found = read(tokenizer, names)
        if _proved(tokenizer, found):
            return [*found, *unused]
    raise ConstraintError(
        "the text of a token depends on its neighbours in this tokenizer, so thoughts cannot be constrained",
        hint="use a model with a byte-level or byte-fallback tokenizer, or no constraint",
    )


def _spelled(tokenizer: TextTokenizer, names: list[str]) -> list[bytes]:
    """The bytes of tokens whose names are their texts, but for single bytes and the character for a space."""
    fallback = "ByteFallback" in tokenizer.decoders
    bytes_of = [single_byte(name) if fallback else None for name in names]
    return [
        name.replace(SPACE, " ").encode() if byte is None else byte for name, byte in zip(names, bytes_of, strict=True)
    ]


def _decoded(tokenizer: TextTokenizer, names: list[str]) -> list[bytes]:
    """The bytes that the decoder adds to a text when a token follows it. Slow for large vocabularies."""
    fallback = "ByteFallback" in tokenizer.decoders
    anchor = tokenizer.encode("a")
    before = len(tokenizer.decode(anchor))
    found = []
    for token, name in enumerate(names):
        byte = single_byte(name) if fallback else None
        found.append(tokenizer.decode([*anchor, token])[before:].encode() if byte is None else byte)
    return found


def _proved(tokenizer: TextTokenizer, found: list[bytes]) -> bool:
    """Whether the texts of random tokens are the bytes of these tokens."""
    chance = random.Random(0)
    anchor = tokenizer.encode("a")
    start = tokenizer.decode(anchor).encode()
    text = [token for token, data in enumerate(found) if data and _whole(data)]
    for _ in range(TRIALS if text else 0):
        tokens = chance.choices(text, k=LENGTH)
        if tokenizer.decode([*anchor, *tokens]).encode() != start + b"".join(found[token] for token in tokens):
            return False
    return True


_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


def single_byte(token: str) -> bytes | None:
    """The byte that a token of a byte-fallback tokenizer stands for; None if the token is text."""
    found = _BYTE.fullmatch(token)
    return None if found is None else bytes.fromhex(found[1])


@cache
def _alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are their own Latin-1 letter, the others are letters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def alphabet_bytes(token: str) -> bytes:
    """The bytes of a token of a byte-level tokenizer. A token outside the alphabet is plain text."""
    alphabet = _alphabet()
    return bytes(alphabet[letter] for letter in token) if all(c in alphabet for c in token) else token.encode()


def _whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
