"""Picks the compressor of a policy, and refuses policies that a model cannot run."""

from __future__ import annotations

from rksc_tot.cache.attention_stats import AttentionStats
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.kv.compressor import Compressor
from rksc_tot.engine.kv.path_compressor import PathCompressor
from rksc_tot.engine.kv.tree_compressor import TreeCompressor
from rksc_tot.engine.model.forward import Forward
from rksc_tot.policies.compression.base import CompressionPolicy, PathPolicy, TreePolicy


def compressor_for(policy: CompressionPolicy, forward: Forward, name: str) -> Compressor:
    """The compressor that carries out ``policy`` on the model called ``name``.

    Raises
    ------
    ConfigError
        If the policy cannot be carried out on this model.
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
        f"{policy.kind} {policy.called!r} is about neither a path nor a tree",
        hint="derive it from PathPolicy or TreePolicy",
    )


def measure_attention(forward: Forward, policy: str, name: str) -> None:
    """Have the arena collect attention from now on, for the policy described by ``policy``.

    Raises
    ------
    ConfigError
        If the attention of the model called ``name`` cannot be seen.
    """
    if forward.route != "fast":
        raise ConfigError(f"{policy} heeds attention, which cannot be seen in {name}", hint="use one that does not")
    forward.arena.attention_stats = forward.arena.attention_stats or AttentionStats()
