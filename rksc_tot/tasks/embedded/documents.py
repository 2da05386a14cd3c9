"""Training documents of embedded models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TokenTarget(NamedTuple):
    """A token that the model must predict at one place of a document.

    * ``kind``: the name of the target, to which a recipe gives layers and weights, such as ``label``.
    * ``back``: how many tokens before the last token of the document the place is.
    * ``word``: the token.
    """

    kind: str
    back: int
    word: str


@dataclass(frozen=True)
class Document:
    """A document with its targets: a path, and sometimes a question after it.

    * ``prompt``: text without loss. ``body``: the thoughts of the path, with next-token loss if ``learn_body``.
    * ``question``: the value question after the body. ``targets``: what is learned besides.
    * ``swap``: whether the hidden state after the question may be exchanged with that of another document, so that the label
      cannot be memorised from the path.
    """

    prompt: str
    body: str
    question: str = ""
    targets: tuple[TokenTarget, ...] = ()
    learn_body: bool = True
    swap: bool = False
