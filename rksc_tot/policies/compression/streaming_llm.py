"""StreamingLLM: Xiao et al. 2023, https://arxiv.org/abs/2309.17453. Keeps a few first tokens and the most recent ones."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from rksc_tot.policies.compression.base import Kept, PathPolicy, View
from rksc_tot.policies.compression.selection import highest


class Streaming(PathPolicy):
    """Keeps the sinks, the pinned prompt and the most recent tokens, the same set for all heads.

    The paper keeps only the sinks of the prompt: set ``pin_prompt=False`` for that. It also renumbers positions within the
    kept tokens, for endless texts. Here tokens keep their positions.

    Parameters
    ----------
    sinks
        Number of first tokens that always stay. The paper uses 4.
    """

    name: ClassVar[str] = "streaming"
    sinks: int = Field(4, ge=0, description="first tokens, which always stay")

    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        return highest(np.zeros(len(view)), budget, max(self.sinks, self.pinned(view)))
