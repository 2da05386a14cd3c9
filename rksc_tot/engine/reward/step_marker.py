"""Step-marker heads: Qwen2.5-Math-PRM (https://arxiv.org/abs/2501.07301), read without its remote code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from rksc_tot.engine.reward.chat_turns import ChatTurns
from rksc_tot.engine.reward.format import RewardFormat
from rksc_tot.engine.reward.head import linear

if TYPE_CHECKING:
    from rksc_tot.engine.reward.checkpoint import Checkpoint

SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
PARTS = ("score.0", "score.2")


class StepMarker(RewardFormat):
    """Chat turns whose assistant writes ``step<extra_0>step<extra_0>``; two classes are read at each marker.

    The head is Linear, ReLU, Linear.
    """

    kind = "step_marker"
    what = "a two-layer head, read at a marker token after each step (Qwen2.5-Math-PRM style)"
    usual_marker = "<extra_0>"

    def __init__(self, checkpoint: Checkpoint, marker: str | None = None) -> None:
        super().__init__(checkpoint, marker)
        self._marker = self.marker_id(self.marker)
        self._turns = ChatTurns(self.tokenizer, ["system", "user", "assistant"])

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        named = checkpoint.architecture.endswith("ForProcessRewardModel")
        return named or all(f"{part}.weight" in checkpoint.weights for part in PARTS)

    def head(self) -> nn.Module:
        layers = [self._linear(part) for part in PARTS]
        self.check_head(PARTS[0], layers[0].weight.shape, (layers[1].in_features,))
        if layers[1].out_features != 2:
            raise self.checkpoint.error(
                f"the head has {layers[1].out_features} classes, not 2", "use a process reward model"
            )
        return nn.Sequential(layers[0], nn.ReLU(), layers[1])

    def _linear(self, name: str) -> nn.Linear:
        if f"{name}.weight" not in self.checkpoint.weights:
            raise self.checkpoint.error(f"the head is missing: no weights are named {name}", "give a whole checkpoint")
        biased = f"{name}.bias" in self.checkpoint.weights
        bias = self.checkpoint.tensor(f"{name}.bias") if biased else None
        return linear(self.checkpoint.tensor(f"{name}.weight"), bias)

    def opening(self, problem: str) -> list[int]:
        return self._turns.tokens(0, SYSTEM, 1, problem, 2)

    def step(self, text: str, first: bool) -> list[int]:
        return [*self.tokenizer.continuation(text), self._marker]
