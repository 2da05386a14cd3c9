"""Keeping: which tokens' KV stays when a path or a block may not keep all. A policy selects; the engine moves and frees.

Keys stay as they were rotated, at the positions of their tokens, so a policy returns which tokens stay and nothing else.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.plugins.user_code import shown

Kept = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]
Sets = Literal["head", "one"]
"""A set of kept tokens for each layer and KV head, or one for all."""


@dataclass(frozen=True, eq=False, slots=True)
class View:
    """What a policy sees of resident tokens, in the order of their positions. Its arrays cannot be written to.

    Parameters
    ----------
    positions
        ``[n]``, ascending; ``[layers, heads, n]`` where an earlier selection left the heads with different tokens.
    prompt
        How many of the first are the prompt's, in every head.
    layers, heads
        How many layers the model has, and how many KV heads each.
    attention
        ``[layers, heads, n]``: what share of their attention, 0..1, the rows computed since the last selection paid to each
        token, the mean over the query heads that share a KV head. None where it was not measured.
    """

    positions: Kept
    prompt: int
    layers: int
    heads: int
    attention: Floats | None = None

    def __post_init__(self) -> None:
        """Let a policy look, not touch."""
        for name in ("positions", "attention"):
            if (array := getattr(self, name)) is not None:
                looked_at = array.view()
                looked_at.flags.writeable = False
                object.__setattr__(self, name, looked_at)

    def __len__(self) -> int:
        return int(self.positions.shape[-1])


class CompressionPolicy(Settings, ABC):
    """A pure choice of tokens. Derive from :class:`PathPolicy` or :class:`TreePolicy`, which say when it is asked.

    Parameters
    ----------
    seed
        What the engine seeds ``rng`` with, besides the path and how often it was reduced.
    """

    kind: ClassVar[str] = "compression policy"
    name: ClassVar[str] = ""
    scope: ClassVar[Literal["path", "tree"]]
    seed: int = Field(0, ge=0)

    @property
    def called(self) -> str:
        """Its name, or its class's where it has none."""
        return self.name or type(self).__name__

    def told(self) -> dict[str, Any]:
        """What it is called and all its settings, as JSON has them."""
        return {"name": self.called, **self.model_dump(mode="json")}

    def check_task(self, name: str) -> None:
        """Raise ConfigError if the policy was fitted to another task; most policies fit any."""

    def check_model(self, name: str, layers: int, weights: Callable[[], str]) -> None:
        """Raise ConfigError if the policy was fitted to another model; ``weights`` gives the hash of its weights."""

    @property
    def heeds_attention(self) -> bool:
        """Whether attention must be measured for it, which takes time in every pass."""
        return False

    @property
    def per_head(self) -> bool:
        """Whether each layer and KV head keeps a set of its own."""
        return False

    @abstractmethod
    def select(self, view: View, budget: int, rng: np.random.Generator) -> Kept:
        """Which tokens stay. Pure: what it returns follows from what it is given.

        Parameters
        ----------
        view : View
            Of ``n`` tokens.
        budget : int
            How many may stay, 0 or more: a path policy's own ``budget`` less the ends of thoughts that stay in any case.
        rng : numpy.random.Generator
            The only source of chance.

        Returns
        -------
        array of int
            ``[k]`` indexes into the view's tokens, strictly ascending, k = min(budget, n); ``[layers, heads, k]`` if
            :attr:`per_head`.
        """


class PathPolicy(CompressionPolicy):
    """Brings one path down to a budget, again and again as it grows. Its recent tokens are no concern of ``select``.

    Parameters
    ----------
    budget
        How many tokens of KV a path may hold beside the recent ones, the prompt's among them.
    recent
        How many of the last tokens always stay. A path that holds ``budget + 2 * recent`` is brought down.
    pin_prompt
        Whether the whole prompt stays, that is the first ``view.prompt`` tokens; a ``select`` that lets go of them is refused.
        Without it a policy may lose the question, which the papers left out by mistake or to show what it costs.
    """

    scope: ClassVar[Literal["path", "tree"]] = "path"
    budget: int = Field(1024, ge=1, description="tokens of KV a path may hold beside the recent ones")
    recent: int = Field(64, ge=1, description="last tokens, which always stay")
    pin_prompt: bool = Field(True, description="whether the whole prompt stays")

    def pinned(self, view: View) -> int:
        """How many of the first tokens of a view stay whatever else does."""
        return view.prompt if self.pin_prompt else 0

    def check_prompt(self, tokens: int) -> None:
        """Refuse a prompt of that many tokens if it is pinned and leaves no room for anything else.

        Raises
        ------
        ConfigError
            It names the budget that is needed.
        """
        if self.pin_prompt and self.budget <= tokens:
            raise ConfigError(
                f"{self.kind} {self.called!r} may keep {self.budget} tokens beside the last {self.recent}, and the prompt"
                f" alone, which is pinned, has {tokens}",
                hint=f"set budget to {tokens + 1} at least",
            )


class ThoughtBlock(NamedTuple):
    """A closed thought, or the part of one that its siblings begin with as well, as a tree policy sees it.

    ``tokens``: of it that are resident. ``value``: of the search, higher is better. ``entropy``: of the token after it, nats.
    ``attention``: what share of later attention went to it, 0..1. Each of these three is NaN where it is not known.
    ``distance``: thoughts from it to the nearest one that is being continued. ``protected``: whether it must stay
    whole, as what is being continued stands on it. ``start``: position of its first token. ``below``: tokens of the same thought
    after it. What several thoughts begin with has the value of the best of them.
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
    """Brings the blocks of a whole tree down when the engine's KV budget is full: ``allot``, then ``select`` in each block.

    Parameters
    ----------
    rehydrate
        Whether a reduced block is made whole again when the search comes back to it.
    """

    scope: ClassVar[Literal["path", "tree"]] = "tree"
    rehydrate: bool = Field(True, description="whether a reduced block is made whole when the search comes back to it")

    @abstractmethod
    def allot(self, blocks: Sequence[ThoughtBlock], budget: int) -> list[int]:
        """How many tokens each block keeps, 0 to all of its own; no more in all than ``budget`` if that can be."""


KEEP: Registry[CompressionPolicy] = Registry(
    kind="compression policy",
    base=CompressionPolicy,  # type: ignore[type-abstract]  # plug-ins are made, the base is not
    group="rksc_tot.compression",
    built_in={
        "arborkv": "rksc_tot.policies.compression.arborkv:ArborKV",
        "random_attention": "rksc_tot.policies.compression.random_attention:RandomAttention",
        "snapkv": "rksc_tot.policies.compression.snapkv:SnapKV",
        "streaming": "rksc_tot.policies.compression.streaming_llm:Streaming",
    },
)


def compression_policy(named: str | CompressionPolicy | None) -> CompressionPolicy | None:
    """The policy of that name with its usual settings, or the policy itself; None keeps everything.

    Raises
    ------
    ConfigError
        If there is none of that name, or it is neither.
    """
    if named is None or isinstance(named, CompressionPolicy):
        return named
    given: object = named
    if isinstance(given, type) and issubclass(given, CompressionPolicy):
        name = given.__name__
        raise ConfigError(f"compress is the class {name}", hint=f"make one of it, such as {name}(budget=256)")
    if isinstance(given, Mapping):
        settings = ", ".join(f"{key}={shown(given[key])}" for key in given if key != "name")
        _refuse_settings(given, given.get("name"), settings)
    if isinstance(given, str) and (written := re.fullmatch(r"(.+?):(\w+=.*)", given, re.DOTALL)):
        plain = re.fullmatch(r"\w+=[\d.]+(,\w+=[\d.]+)*", written[2])
        _refuse_settings(given, written[1], written[2].replace(",", ", ") if plain else "setting=value")
    if not isinstance(given, str):
        hint = f"name one of {', '.join(KEEP.names())}, or derive your own from PathPolicy or TreePolicy"
        raise ConfigError(f"compress is {shown(given)}", hint=hint)
    return KEEP.make(given)


def _refuse_settings(given: object, name: object, settings: str) -> None:
    """Refuse a name with settings, as the command line has them, if there is such a policy."""
    home = KEEP.home(name) if isinstance(name, str) else None
    if home is not None:
        module, made = home
        raise ConfigError(
            f"compress is {shown(given)}",
            hint=f"in Python its class is given the settings, {made}({settings}), after from {module} import {made}",
        )
