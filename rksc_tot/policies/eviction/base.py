"""Eviction policies: the order in which KV is evicted. The cache decides which KV may be evicted at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from pydantic import Field

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.core.plugins.settings import Settings
from rksc_tot.core.seeds import stream_key


class EvictionCandidate(NamedTuple):
    """What a policy sees of a resident run of tokens below which no KV is resident.

    Attributes
    ----------
    importance
        Result of :meth:`EvictionPolicy.importance` for the path or the nearest rated path above; infinite if none is rated.
    last_used
        Clock of the cache at the last visit.
    uses
        Number of visits.
    id
        Number of the run; younger runs have higher numbers.
    """

    importance: float
    last_used: int
    uses: int
    id: int


class EvictionPolicy(Settings, ABC):
    """A pure order of candidates. The order of a candidate changes only when the candidate changes.

    The cache evicts in three rounds, whatever the policy: first runs that no handle refers to, then runs that a handle refers to
    (unless ``evicts_held`` is False), last the prompts of open searches. KV that running jobs or resident KV below need is never
    a candidate.
    """

    kind: ClassVar[str] = "eviction policy"
    name: ClassVar[str] = ""
    evicts_held: ClassVar[bool] = True

    @property
    def heeds_attention(self) -> bool:
        """Whether :meth:`importance` needs attention to be measured, which takes time in every pass."""
        return False

    @abstractmethod
    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        """Sort key of a candidate. The smallest is evicted first, and the lower id among equals."""

    def importance(self, score: float, depth: int, attention: float = 0.0) -> float:
        """Importance of a rated path; 0 where the policy does not use ratings.

        Parameters
        ----------
        score
            Score of the last thought; higher is better.
        depth
            Number of thoughts of the path.
        attention
            Share of later attention that went to the tokens of the thought, 0..1; 0 where it is not measured.
        """
        return 0.0


class LRU(EvictionPolicy):
    """Least recently used first."""

    name: ClassVar[str] = "lru"

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.last_used,)


class LFU(EvictionPolicy):
    """Least frequently used first; least recently used first among equals."""

    name: ClassVar[str] = "lfu"

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.uses, candidate.last_used)


class RandomEviction(EvictionPolicy):
    """Random order: each visit draws a number, and the lowest is evicted first."""

    name: ClassVar[str] = "random"
    seed: int = Field(0, ge=0)

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (float(stream_key(self.seed, candidate.id, candidate.last_used)),)


class NoEviction(EvictionPolicy):
    """Evicts no KV that a handle refers to. A request that does not fit waits, and fails if it would wait for ever."""

    name: ClassVar[str] = "none"
    evicts_held: ClassVar[bool] = False

    def order(self, candidate: EvictionCandidate) -> tuple[float, ...]:
        return (candidate.last_used,)


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
    """The policy of that name with its default settings, or the policy itself.

    Raises
    ------
    ConfigError
        If there is no policy of that name, or ``named`` is neither a name nor a policy.
    """
    if isinstance(named, EvictionPolicy):
        return named
    if not isinstance(named, str):
        raise ConfigError(f"eviction is {named!r}", hint=f"name one of {', '.join(EVICTION.names())}")
    return EVICTION.make(named)
