"""Selects the compressor of a policy, and refuses policies that do not fit a model."""

from __future__ import annotations

from rksc_tot.cache.attention_stats import AttentionStats
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.kv.compressor import Compressor
from rksc_tot.engine.kv.path_compressor import PathCompressor
from rksc_tot.engine.kv.tree_compressor import TreeCompressor
from rksc_tot.engine.model.forward import Forward
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy, TreePolicy


def compressor_for(policy: CompressionPolicy, forward: Forward, name: str) -> Compressor:
    """The compressor that applies ``policy`` to the model called ``name``.

    Raises
    ------
    ConfigError
        If the policy does not fit this model.
    """
    if policy.heeds_attention:
        measure_attention(forward, f"{policy.kind} {policy.called!r}", name)
    windows = getattr(forward.model.config.get_text_config(), "sliding_window", None)
    if policy.per_head and windows:
        raise ConfigError(
            f"{policy.kind} {policy.called!r} keeps other tokens in every head, and {name} has a window of {windows} tokens,"
            " which is one for all heads",
            hint="keep one set of tokens for all heads",
        )
    if isinstance(policy, PathPolicy):
        return PathCompressor(policy, forward.arena)
    if isinstance(policy, TreePolicy):
        if policy.per_head:
            raise ConfigError(
                f"{policy.kind} {policy.called!r} keeps other tokens in every head, and thoughts that may be visited again keep"
                " the same in all",
                hint="keep one set of tokens for all heads",
            )
        return TreeCompressor(policy, forward.arena)
    raise ConfigError(
        f"{policy.kind} {policy.called!r} compresses neither paths nor trees",
        hint="derive it from PathPolicy or TreePolicy",
    )


def measure_attention(forward: Forward, policy: str, name: str) -> None:
    """Let the arena collect attention stats from now on, for the policy described by ``policy``.

    Raises
    ------
    ConfigError
        If attention stats are not available for the model called ``name``.
    """
    if forward.route != "fast":
        raise ConfigError(
            f"{policy} needs attention stats, which are not available for {name}", hint="use one that does not"
        )
    forward.arena.attention_stats = forward.arena.attention_stats or AttentionStats()
