"""Facts about a model that an engine needs: sizes and end-of-text tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rksc_tot.cache.arena import Arena
from rksc_tot.core.errors import UnsupportedModel
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.model.forward import Forward

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHOWN = 3  # names in a message


def bytes_per_token(forward: Forward, arena: Arena) -> int:
    """KV bytes of one token, measured by storing one."""
    forward.run(forward.plan([Block([], 0, [1], [0], [0])]), 1)
    size = arena.bytes_per_row
    arena.clear()
    return size


def vocabulary_size(embeddings: Any) -> int:
    """Size of the model's vocabulary."""
    return int(embeddings.weight.shape[0])


def broken_weights(model: nn.Module) -> str:
    """Which weights hold NaN or infinite numbers, as a sentence; empty if none do."""
    broken = [
        name
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and not bool(weight.isfinite().all())
    ]
    more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
    return f"NaN or infinite numbers are in the weights {', '.join(broken[:SHOWN])}{more}" if broken else ""


def check_weights_place(model: PreTrainedModel) -> None:
    """Refuse a model whose weights are not all on one device.

    Raises
    ------
    UnsupportedModel
        If they are on several devices, or accelerate moves them to the device for each layer.
    """
    places = sorted({str(weight.device) for weight in model.parameters()})
    if "meta" in places:
        raise UnsupportedModel(
            "accelerate keeps part of this model's weights elsewhere (on the meta device) and brings them for each layer",
            hint="load the whole model on one device, or a quantised one that fits",
        )
    if len(places) > 1:
        raise UnsupportedModel(
            f"the weights are on {', '.join(places)}, but the plan of a pass and the index of its KV are on one device",
            hint="load the model on one device: device instead of device_map, or a quantised model that fits",
        )


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-text tokens, from the model's configs and the tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)
