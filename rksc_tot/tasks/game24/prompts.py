"""Prompts and the value question for the embedded model in the game of 24."""

from __future__ import annotations

from rksc_tot.tasks.game24.tokenizer import TRIES
from rksc_tot.tasks.game24.world import (
    State,
)

QUESTION = "try " + " ".join(TRIES) + " so"


def prompt_text(role: str, root: State) -> str:
    """The prompt of a role: ``steps`` asks for one step, ``solve`` for a whole chain."""
    return f"{role} {' '.join(map(str, root))}\n"
