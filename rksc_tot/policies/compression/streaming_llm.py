"""StreamingLLM: Xiao et al. 2023, https://arxiv.org/abs/2309.17453. A few first tokens, and recent ones."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from rksc_tot.policies.compression.base import Kept, PathPolicy, View
from rksc_tot.policies.compression.selection import highest


class Streaming(PathPolicy):
    """The sinks and the most recent tokens, one set for all heads.

    The paper's keeps no more of the prompt than the sinks: that is ``pin_prompt=False``. It also counts positions within what
    is kept, so that a text may grow for ever; here tokens keep their positions, as with every other policy.

    Parameters
    ----------
    sinks
        How many of the first tokens always stay; the paper has 4.
    """

    name: ClassVar[str] = "streaming"
    sinks: int = Field(4, ge=0, description="first tokens, which always stay")

    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        return highest(np.zeros(len(view)), budget, max(self.sinks, self.pinned(view)))
