"""The eviction policies by name. An installed package adds one through the entry-point group ``rksc_tot.eviction``."""

from __future__ import annotations

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.registry import Registry
from rksc_tot.policies.eviction.base import EvictionPolicy

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
