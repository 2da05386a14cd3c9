"""The setting ``Task.thinking``: how a thinking model's blocks are bounded, read and kept."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings

Markers = tuple[str, str] | tuple[str, str, str]
"""What opens a thinking block and what closes it; and, optionally, what follows before the reply."""


class Thinking(Settings):
    """How thoughts of a thinking model are read.

    A *thinking block* is what the model writes between an opening and a closing marker, such as ``<think>…</think>``. The
    search opens each block, and closes it where the model does not.

    * ``budget``: most tokens that a block may have. At the budget the block is closed by force: the closing marker is
      appended, not sampled.
    * ``keep``: whether a closed block stays on the path. False: the path goes on as if the block had never been there.
    * ``thought``: what a thought is. ``after``: the text after a block; each thought has a block of its own. ``whole``: a block
      with its markers and the text after it. ``inside``: a step inside one block, which begins at the root; the thought that
      closes the block is the text after it.
    * ``markers``: the markers, if they cannot be read off the tokenizer and its chat template: what opens a block, what closes
      it and, if needed, what follows before the reply, such as ``("<think>", "</think>")``.
    """

    kind: ClassVar[str] = "thinking"
    budget: int = Field(512, ge=1)
    keep: bool = False
    thought: Literal["after", "inside", "whole"] = "after"
    markers: Markers | None = None

    @field_validator("markers")
    @classmethod
    def _check_markers(cls, markers: Markers | None) -> Markers | None:
        if markers is not None:
            opening, closing = (marker.strip() for marker in markers[:2])
            if not opening or not closing or opening == closing:
                raise ConfigError(
                    f"thinking: the markers are {markers[:2]}, not two different texts",
                    hint="give what opens a block and what closes it, such as ('<think>', '</think>')",
                )
        return markers
