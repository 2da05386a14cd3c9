"""Causal LMs that say + or - after a step: Math-Shepherd (https://arxiv.org/abs/2312.08935) and RLHFlow's chat turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rksc_tot.engine.reward.chat_turns import ChatTurns
from rksc_tot.engine.reward.format import RewardFormat
from rksc_tot.engine.reward.head import RewardModel, ShapedHead, linear

if TYPE_CHECKING:
    from rksc_tot.engine.reward.checkpoint import Checkpoint

BAD, GOOD = "-", "+"
MOST_APART = 0.05  # of a logit: half precision rounds


class LabelPair(RewardFormat):
    """Math-Shepherd: ``problem step ки\\n step ки``; P(+) over + and - is read at the marker."""

    kind = "label_pair"
    what = "a causal LM that says + or - at a marker after each step (Math-Shepherd style)"
    usual_marker = "ки"

    def __init__(self, checkpoint: Checkpoint, marker: str | None = None) -> None:
        super().__init__(checkpoint, marker)
        self.signs = [self.marker_id(BAD), self.marker_id(GOOD)]
        self._prepare()

    def _prepare(self) -> None:
        self._marker = self.marker_id(self.marker)

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        return checkpoint.architecture.endswith("ForCausalLM") and not checkpoint.tokenizer.chat_template

    def model(self) -> RewardModel:
        """The backbone, with the two rows of the output embedding. Proved on one run of the whole model."""
        whole = self.checkpoint.causal_lm()
        output: Any = whole.get_output_embeddings()
        text = whole.config.get_text_config()
        rows = len(output.weight)
        if max(self.signs) >= rows:
            raise self.checkpoint.error(
                f"the output embedding has {rows} rows, none for + or -", "give its own tokenizer"
            )
        bias = getattr(output, "bias", None)
        plain = linear(output.weight[self.signs], None if bias is None else bias[self.signs])
        cap = getattr(text, "final_logit_softcapping", None)
        scale = (getattr(text, "logit_scale", None) or 1) / (getattr(text, "logits_scaling", None) or 1)
        head = ShapedHead(plain, lambda z: _capped(z * scale, cap)) if cap or scale != 1 else plain
        backbone: Any = whole.base_model
        model = RewardModel(backbone, head)
        ids = torch.tensor([[n % rows for n in range(1, 9)]])
        with torch.inference_mode():
            apart = whole(input_ids=ids).logits[..., self.signs] - model(ids, use_cache=False).logits
        if not float(apart.abs().max()) <= MOST_APART:
            raise self.checkpoint.error("norm and output embedding do not give the model's logits", "use another model")
        return model

    def opening(self, problem: str) -> list[int]:
        return self.tokenizer.encode_prompt(problem)

    def step(self, text: str, first: bool) -> list[int]:
        return [*self.tokenizer.continuation((" " if first else "\n") + text), self._marker]


class LabelTurns(LabelPair):
    """RLHFlow: each step is a user turn, the first after the problem; P(+) is read where the assistant's turn begins."""

    kind = "label_turns"
    what = "a causal LM with a chat template, where the assistant says + or - after each step (RLHFlow style)"

    def _prepare(self) -> None:
        self._turns = ChatTurns(self.tokenizer, ["user", "assistant", "user"])

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        return checkpoint.architecture.endswith("ForCausalLM") and bool(checkpoint.tokenizer.chat_template)

    def opening(self, problem: str) -> list[int]:
        return self._turns.tokens(0, problem)

    def step(self, text: str, first: bool) -> list[int]:
        if first:
            return self._turns.tokens(" " + text, 1)
        return [self.signs[1], *self._turns.tokens(2, text, 1)]


def _capped(logits: Tensor, cap: float | None) -> Tensor:
    return torch.tanh(logits / cap) * cap if cap else logits
