"""The logit lens: next-token probabilities from the hidden states after any layer.

``softmax(shape(norm(h_l) @ W_U[labels] + b))``: final norm, output embedding restricted to the labels, and the model's changes of
logits (soft-cap, scale). On a reward model the head takes the place of the output embedding, and its classes that of tokens. The
parts are found by one run of the model. They are proved by comparison: after the last layer the lens must give the model's own
logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rksc_tot.core.errors import UnsupportedModel

Shape = Callable[[Tensor], Tensor]


class LogitLens:
    """Computes label probabilities from hidden states. ``layers``: the decoder layers, in order."""

    def __init__(self, layers: Sequence[nn.Module], norm: nn.Module, head: nn.Module, shape: Shape) -> None:
        self.layers = list(layers)
        self._norm = norm
        self._head: Any = head
        self._shape = shape

    def logits(self, hidden: Tensor, ids: Sequence[int]) -> Tensor:
        """Logits ``[n, len(ids)]`` of a few token ids after hidden states ``[n, H]`` of any layer.

        Summed row by row in float32 at least, since the last bits of a matrix product depend on its number of rows.
        """
        if not hasattr(self._head, "weight"):  # a head of several layers
            return self.all_logits(hidden)[:, list(ids)]
        weight, bias = self._head.weight[ids], getattr(self._head, "bias", None)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        summed = (self._norm(hidden)[:, None, :].to(wide) * weight.to(wide)).sum(-1)
        return self._shape((summed if bias is None else summed + bias[ids]).to(hidden.dtype))

    def all_logits(self, hidden: Tensor) -> Tensor:
        """Logits ``[n, V]`` of all tokens, computed in the same way."""
        rows = self._norm(hidden).split(1)
        if not hasattr(self._head, "weight"):
            return self._shape(torch.cat([self._head(row) for row in rows]))
        weight, bias = self._head.weight, getattr(self._head, "bias", None)
        return self._shape(torch.cat([nn.functional.linear(row, weight, bias) for row in rows]))

    def probabilities(self, hidden: Tensor, labels: Sequence[Sequence[int]]) -> Tensor:
        """Label probabilities ``[n, labels]`` in double precision; the spellings of a label are added up."""
        ids = [id for spellings in labels for id in spellings]
        each = self.logits(hidden, ids).double().split([len(spellings) for spellings in labels], dim=-1)
        return torch.stack([part.logsumexp(-1) for part in each], -1).softmax(-1)


def find_lens(model: PreTrainedModel, ids: list[int]) -> LogitLens:
    """The lens of a model, found by an ordinary call on ``ids``.

    Raises
    ------
    UnsupportedModel
        If the parts of the lens are not found, or do not give the model's logits.
    """
    layers, head = _decoder_layers(model), model.get_output_embeddings()
    if not isinstance(head, nn.Module):
        raise UnsupportedModel("no logit lens: the model has no output embedding")
    inside = {module for layer in layers for module in layer.modules()}
    seen: dict[str, Tensor] = {}
    passed: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            passed.append((module, args[0], output))

    with ExitStack() as stack, torch.inference_mode():

        def keep(name: str, value: Any) -> None:
            seen[name] = value

        hooks = [
            layers[-1].register_forward_hook(lambda _m, _a, out: keep("last", first(out))),
            head.register_forward_pre_hook(lambda _m, args: keep("read", args[0])),
            *(m.register_forward_hook(note) for m in model.modules() if m not in inside and m is not head),
        ]
        for hook in hooks:
            stack.callback(hook.remove)
        logits: Tensor = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0]
    last, read = seen["last"], seen["read"]
    norms = [m for m, given, out in passed if _same(given, last) and _same(out, read)]
    if not norms:
        raise UnsupportedModel(
            "no logit lens: the model computes more than a norm between the last layer and the logits"
        )
    tolerance = max(1.0, float(logits.abs().max())) * (1e-4 if model.dtype.itemsize >= 4 else 0.02)
    with torch.inference_mode():
        for shape in _shapes(model.config.get_text_config()):
            lens = LogitLens(layers, norms[0], head, shape)
            if float((lens.all_logits(last[0]).float() - logits.float()).abs().max()) <= tolerance:
                return lens
    raise UnsupportedModel("no logit lens: norm and output embedding do not give the model's logits")


def _decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise UnsupportedModel("no logit lens: the model has no list of decoder layers")


def _shapes(config: Any) -> list[Shape]:
    """The changes of logits by the model's config, as functions."""
    shapes: list[Shape] = [lambda z: z]
    if cap := getattr(config, "final_logit_softcapping", None):
        shapes.append(lambda z: torch.tanh(z / cap) * cap)
    if scale := getattr(config, "logit_scale", None):
        shapes.append(lambda z: z * scale)
    if divisor := getattr(config, "logits_scaling", None):
        shapes.append(lambda z: z / divisor)
    return shapes


def first(output: Any) -> Tensor:
    """The hidden states in the output of a layer."""
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.data_ptr() == b.data_ptr()
