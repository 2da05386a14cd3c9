"""Compression policies: choose which tokens of a path or a block keep their KV. The engine moves and frees the KV.

Keys keep their rotation, at the positions of their tokens, so a policy returns nothing but a choice of tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.settings import Settings

Kept = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]
Sets = Literal["head", "one"]
"""``head``: a set of kept tokens for each layer and KV head. ``one``: the same set for all."""


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """Resident tokens as a policy sees them, in the order of their positions. The arrays are read-only.

    Parameters
    ----------
    positions
        ``[n]``, ascending; ``[layers, heads, n]`` if an earlier selection left different tokens in different heads.
    prompt
        Number of prompt tokens at the beginning, in every head.
    layers, heads
        Number of layers, and of KV heads a layer.
    attention
        ``[layers, heads, n]``: mean attention weight, 0..1, from the rows computed since the last selection to each token, also
        averaged over the query heads of a KV head. None if it was not measured.
    """

    positions: Kept
    prompt: int
    layers: int
    heads: int
    attention: Floats | None = None

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for name in ("positions", "attention"):
            if (array := getattr(self, name)) is not None:
                read_only = array.view()
                read_only.flags.writeable = False
                object.__setattr__(self, name, read_only)

    def __len__(self) -> int:
        return int(self.positions.shape[-1])


class CompressionPolicy(Settings, ABC):
    """A pure choice of tokens. Derive from :class:`PathPolicy` or :class:`TreePolicy`, not from this class.

    Parameters
    ----------
    seed
        Seed of ``rng``, together with the path and the number of its earlier selections.
    """

    kind: ClassVar[str] = "compression policy"
    name: ClassVar[str] = ""
    scope: ClassVar[Literal["path", "tree"]]
    seed: int = Field(0, ge=0)

    @property
    def called(self) -> str:
        """The name of the policy, or of its class if it has none."""
        return self.name or type(self).__name__

    def describe(self) -> dict[str, Any]:
        """The name and all settings as JSON values."""
        return {"name": self.called, **self.model_dump(mode="json")}

    def check_task(self, name: str) -> None:
        """Raise ConfigError if the policy was fitted to another task; most policies fit any."""

    def check_model(self, name: str, layers: int, weights: Callable[[], str]) -> None:
        """Raise ConfigError if the policy was fitted to another model; ``weights`` gives the hash of its weights."""

    @property
    def heeds_attention(self) -> bool:
        """Whether the engine must measure attention, which takes time in every pass."""
        return False

    @property
    def per_head(self) -> bool:
        """Whether each layer and KV head keeps a set of its own."""
        return False

    @abstractmethod
    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        """Choose the tokens that stay. Must be pure: the result depends on the arguments only.

        Parameters
        ----------
        view : View
            ``n`` tokens.
        budget : int
            Number of tokens that may stay, 0 or more: for a path policy its ``budget`` minus the ends of thoughts, which always
            stay.
        rng : numpy.random.Generator
            The only source of randomness.

        Returns
        -------
        array of int
            ``[k]`` indexes into the view's tokens, strictly ascending, k = min(budget, n); ``[layers, heads, k]`` if
            :attr:`per_head`.
        """


class PathPolicy(CompressionPolicy):
    """Compresses one path to a budget, repeatedly as it grows. ``select`` does not see the recent tokens, which stay.

    Parameters
    ----------
    budget
        Number of tokens whose KV a path may hold besides the recent ones, the prompt included.
    recent
        Number of last tokens that always stay. A path is compressed when it holds ``budget + 2 * recent`` tokens.
    pin_prompt
        Whether the whole prompt, the first ``view.prompt`` tokens, must stay. A ``select`` that drops one of them is an error.
        Without it a policy may drop the question; some papers do.
    """

    scope: ClassVar[Literal["path", "tree"]] = "path"
    budget: int = Field(1024, ge=1, description="tokens of KV a path may hold besides the recent ones")
    recent: int = Field(64, ge=1, description="last tokens, which always stay")
    pin_prompt: bool = Field(True, description="whether the whole prompt stays")

    def pinned(self, view: View) -> int:
        """Number of first tokens of a view that must stay."""
        return view.prompt if self.pin_prompt else 0

    def check_prompt(self, tokens: int) -> None:
        """Check that a pinned prompt of that many tokens leaves room in the budget.

        Raises
        ------
        ConfigError
            The message says which budget is needed.
        """
        if self.pin_prompt and self.budget <= tokens:
            raise ConfigError(
                f"{self.kind} {self.called!r} has a budget of {self.budget} tokens, and the pinned prompt alone has {tokens}",
                hint=f"set budget to {tokens + 1} at least",
            )


class ThoughtBlock(NamedTuple):
    """A closed thought, or the common beginning of several siblings, as a tree policy sees it.

    * ``tokens``: number of its resident tokens.
    * ``value``: score of the thought, higher is better; of a common beginning, the best one of its thoughts.
    * ``entropy``: of the next-token distribution after it, nats.
    * ``attention``: mean share of later attention to it, 0..1.
    * ``distance``: number of thoughts from it to the nearest one that is being continued.
    * ``protected``: whether it lies on a path that is being continued, so that all of it must stay.
    * ``start``: position of its first token.
    * ``below``: number of tokens of the same thought after it.

    ``value``, ``entropy`` and ``attention`` are NaN if unknown.
    """

    tokens: int
    value: float
    entropy: float
    attention: float
    distance: int
    protected: bool
    start: int
    below: int = 0


class TreePolicy(CompressionPolicy):
    """Compresses the blocks of all trees when the engine's KV budget is full: ``allot``, then ``select`` in each block.

    Parameters
    ----------
    rehydrate
        Whether the dropped KV of a block is recomputed when the search continues from it.
    """

    scope: ClassVar[Literal["path", "tree"]] = "tree"
    rehydrate: bool = Field(True, description="whether dropped KV is recomputed when the search returns to its path")

    @abstractmethod
    def allot(self, blocks: Sequence[ThoughtBlock], budget: int) -> list[int]:
        """Number of tokens that each block keeps, 0 to all of its own. The sum should be at most ``budget``."""
