"""Eviction: whose KV goes first when the budget needs room. A policy orders; what may go at all, the cache knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.seeds import stream_key


class EvictionCandidate(NamedTuple):
    """What a policy sees of a resident run of tokens below which nothing is resident.

    ``importance``: what :meth:`EvictionPolicy.importance` gave for the path or for the nearest rated one above it; infinite
    if there is none. ``used_at``: the cache's clock at the last visit. ``uses``: how many visits. ``id``: higher is younger.
    """

    importance: float
    used_at: int
    uses: int
    id: int


class EvictionPolicy(Settings, ABC):
    """A pure order of candidates. The order of a candidate may change only when the candidate does.

    The cache asks in three rounds, whatever the policy: first among what no handle refers to, then among what one does
    (unless ``evicts_held`` is False), last among the prompts of searches that are still open. What running work needs, and
    what something resident stands on, is never a candidate.
    """

    kind: ClassVar[str] = "eviction policy"
    name: ClassVar[str] = ""
    evicts_held: ClassVar[bool] = True

    @property
    def heeds_attention(self) -> bool:
        """Whether attention must be measured for :meth:`importance`, which takes time in every pass."""
        return False

    @abstractmethod
    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        """Where a candidate stands: the smallest goes first, the lower id among equals."""

    def importance(self, score: float, depth: int, attention: float = 0.0) -> float:
        """What a rating is worth; 0 where the policy does not heed ratings.

        ``score``: of a path's last thought, higher is better. ``depth``: how many thoughts the path has. ``attention``: what
        share of later attention went to the thought's tokens, 0..1, and 0 where that is not measured.
        """
        return 0.0


class LRU(EvictionPolicy):
    """Least recently used first."""

    name: ClassVar[str] = "lru"

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.used_at,)


class LFU(EvictionPolicy):
    """Least often used first; the least recently used among equals."""

    name: ClassVar[str] = "lfu"

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.uses, candidate.used_at)


class RandomEviction(EvictionPolicy):
    """At random: each visit draws a number, and the lowest goes first."""

    name: ClassVar[str] = "random"
    seed: int = Field(0, ge=0)

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (float(stream_key(self.seed, candidate.id, candidate.used_at)),)


class NoEviction(EvictionPolicy):
    """Nothing a handle refers to; a request that does not fit waits, and fails if it would wait for ever."""

    name: ClassVar[str] = "none"
    evicts_held: ClassVar[bool] = False

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.used_at,)


EVICTION: Registry[EvictionPolicy] = Registry(
    kind="eviction policy",
    base=EvictionPolicy,  # type: ignore[type-abstract]  # plug-ins are made, the base is not
    group="rksc_tot.eviction",
    built_in={
        "rsbcm": "rksc_tot.policies.eviction.rsbcm:RSBCM",
        "lru": "rksc_tot.policies.eviction.base:LRU",
        "lfu": "rksc_tot.policies.eviction.base:LFU",
        "random": "rksc_tot.policies.eviction.base:RandomEviction",
        "none": "rksc_tot.policies.eviction.base:NoEviction",
    },
)


def eviction_policy(named: str | EvictionPolicy) -> EvictionPolicy:
    """The policy of that name with its usual settings, or the policy itself.

    Raises
    ------
    ConfigError
        If there is none of that name, or it is neither.
    """
    if isinstance(named, EvictionPolicy):
        return named
    if not isinstance(named, str):
        raise ConfigError(f"eviction is {named!r}", hint=f"name one of {', '.join(EVICTION.names())}")
    return EVICTION.make(named)
