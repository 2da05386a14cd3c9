"""Facts about a model that an engine needs: sizes and end-of-text tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rksc_tot.cache.arena import Arena
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.model.forward import Forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def bytes_per_token(forward: Forward, arena: Arena) -> int:
    """KV bytes of one token, measured by storing one."""
    forward.run(forward.plan([Block([], 0, [1], [0], [0])]), 1)
    size = arena.bytes_per_row
    arena.clear()
    return size


def vocabulary_size(embeddings: Any) -> int:
    """Size of the model's vocabulary."""
    return int(embeddings.weight.shape[0])


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-text tokens, from the model's configs and the tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)
