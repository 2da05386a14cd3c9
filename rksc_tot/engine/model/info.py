"""What an engine must know of its model besides what it can do: sizes and end tokens."""

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
    """How many token ids the model knows."""
    return int(embeddings.weight.shape[0])


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a text, by any of the places that name one."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)
