"""A backbone with a head: to an engine, a model whose logits are those of the head's two classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import TokenClassifierOutput

from rksc_tot.engine.model.hf_compat import cache_keyword

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel


class RewardModel(nn.Module):
    """A backbone and a head on its last hidden states. Engines use it like a causal LM with a vocabulary of two tokens.

    Parameters
    ----------
    backbone
        A decoder without a head, such as ``Qwen2Model``.
    head
        Takes hidden states ``[…, H]`` after the final norm; returns logits ``[…, 2]`` of *incorrect* and *correct*. The
        identity gives the hidden states themselves, to prove the backbone.
    """

    def __init__(self, backbone: PreTrainedModel, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.config = backbone.config
        self.generation_config = None
        self._cache_name = cache_keyword(backbone)

    @property
    def device(self) -> torch.device:
        """Device of the backbone."""
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the backbone."""
        return self.backbone.dtype

    def set_attn_implementation(self, name: str) -> None:
        """Set the attention function of the backbone."""
        self.backbone.set_attn_implementation(name)

    def get_input_embeddings(self) -> Any:
        """The backbone's embedding."""
        return self.backbone.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        """The head, which the logit lens applies after each layer."""
        return self.head

    def forward(
        self, input_ids: Tensor, *, logits_to_keep: Any = None, cache: Any = None, **arguments: Any
    ) -> TokenClassifierOutput:
        """Class logits ``[1, n, 2]`` of the rows ``logits_to_keep``; of all rows without it."""
        hidden = self.backbone(input_ids=input_ids, **{self._cache_name: cache}, **arguments).last_hidden_state
        return TokenClassifierOutput(logits=self.head(hidden if logits_to_keep is None else hidden[:, logits_to_keep]))


class ShapedHead(nn.Module):
    """A linear head whose logits the model changes (soft-cap, scale)."""

    def __init__(self, linear: nn.Linear, shape: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = linear
        self._shape = shape

    def forward(self, hidden: Tensor) -> Tensor:
        """Class logits."""
        return self._shape(self.linear(hidden))


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear layer with these weights ``[k, H]``."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def two_classes(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A linear head with two classes. One row ``[1, H]`` gives a scalar z: its classes have the logits 0 and z, so that the
    probability of the second is the sigmoid of z.
    """
    if weight.shape[0] == 1:
        weight = torch.cat([torch.zeros_like(weight), weight])
        bias = None if bias is None else torch.cat([torch.zeros_like(bias), bias])
    return linear(weight, bias)
