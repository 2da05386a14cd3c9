"""How the model tells its thoughts apart: compares sampled texts with the task's boundary, and advises another boundary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rksc_tot.core.task.boundary import Boundary
from rksc_tot.engine.base import Finish

CANDIDATES = ("fences", "numbered", "paragraphs", "lines", "sentences:2")
"""Boundaries to advise, the most specific first."""
CLOSING_TAG = re.compile(r"</([\w.-]+)>")


class SampledText(NamedTuple):
    """A text that the model wrote for a thought, and why it ended."""

    text: str
    finish: Finish


class Advice(NamedTuple):
    """What sampled texts say about a boundary: ``works``: thoughts end there; ``message``: one sentence."""

    works: bool
    message: str


def advise(boundary: Boundary, samples: Sequence[SampledText], limit: int) -> Advice:
    """Whether thoughts end at the boundary, and what to set if they do not. ``limit``: the most tokens of a thought."""
    number, finishes = len(samples), [finish for _, finish in samples]
    shown = repr(boundary.name) if boundary.name != "stop" else ", ".join(map(repr, boundary.stop)) or "no stop string"
    stops, ends = finishes.count("stop"), finishes.count("eos")
    found = [f"{stops} of {number} sampled thoughts end at {shown}"] if boundary.stop or boundary.rule else []
    found += [f"{ends} with the model's text"] if ends else []
    found += [f"{cut} at {limit} tokens"] if (cut := number - stops - ends) else []
    message = ", ".join(found)
    if boundary.tokens is not None or stops or (ends and boundary.name == "whole"):
        return Advice(True, message)
    if ends == number:
        advice = "ask in the prompt for one step at a time" if boundary.stop or boundary.rule else ""
        usual = _usual([text for text, _ in samples])
        advice = f"set thoughts={usual!r}" if usual else advice or "set thoughts='whole'"
        return Advice(False, f"{message}, so a tree has depth 1: {advice}")
    usual = _usual([text for text, finish in samples if finish not in ("stop", "eos")])
    advice = f"set thoughts={usual!r}, which they do reach" if usual else "raise max_thought_tokens"
    return Advice(False, f"{message}: {advice}")


def _usual(texts: Sequence[str]) -> str | None:
    """The first boundary that ends most of the texts before their end."""
    tags = [f"tag:{name}" for name in dict.fromkeys(CLOSING_TAG.findall(texts[0]))] if texts else []
    for name in (*tags, *CANDIDATES):
        boundary = Boundary.of(name)
        inside = [text for text in texts if _ends(boundary, text)]
        if len(inside) * 2 > len(texts):
            return name
    return None


def _ends(boundary: Boundary, text: str) -> bool:
    """Whether a thought ends in the text, with more text after it."""
    text = text.strip()
    if boundary.rule is not None:
        return boundary.rule.find(text) is not None
    return any(string in text for string in boundary.stop)
