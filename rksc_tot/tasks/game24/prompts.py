"""What the embedded model is asked in the game of 24."""

from __future__ import annotations

from rksc_tot.tasks.game24.tokenizer import TRIES
from rksc_tot.tasks.game24.world import (
    State,
)

QUESTION = "try " + " ".join(TRIES) + " so"


def prompt_text(role: str, root: State) -> str:
    """The prompt of a role: ``steps`` proposes a step at a time, ``solve`` writes a whole chain."""
    return f"{role} {' '.join(map(str, root))}\n"
