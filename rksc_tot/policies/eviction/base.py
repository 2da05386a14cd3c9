"""Eviction policies: the order in which KV is evicted. The cache decides which KV may be evicted at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from pydantic import Field

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
