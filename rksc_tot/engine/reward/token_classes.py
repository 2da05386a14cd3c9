"""Heads on every token, read at a separator after each step: TRL, PURE, and Skywork's value head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from rksc_tot.engine.reward.format import RewardFormat

if TYPE_CHECKING:
    from rksc_tot.engine.reward.checkpoint import Checkpoint


class TokenClasses(RewardFormat):
    """TRL (https://huggingface.co/docs/trl/prm_trainer) and PURE (https://arxiv.org/abs/2504.15275).

    ``problem step\\n step\\n``; problem, steps and separators are tokenised separately. The classes are read at the separator.
    """

    kind = "token_classes"
    what = "a token-classification head, read at a separator after each step (TRL and PURE style)"

    def __init__(self, checkpoint: Checkpoint, marker: str | None = None) -> None:
        super().__init__(checkpoint, marker)
        self._separator = self.tokenizer.encode(self.marker)
        if not self._separator:
            raise checkpoint.error("the separator is empty", "name a marker, such as a line break")

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        return checkpoint.architecture.endswith("ForTokenClassification")

    def head(self) -> nn.Module:
        return self.linear_head("score", "classifier")

    def opening(self, problem: str) -> list[int]:
        return self.tokenizer.encode_prompt(problem)

    def step(self, text: str, first: bool) -> list[int]:
        return [*self.tokenizer.continuation(text), *self._separator]


class ValueHead(TokenClasses):
    """Skywork-o1-Open-PRM: a line for the problem and one for each step; the sigmoid of a scalar at the line break."""

    kind = "value_head"
    what = "a scalar value head, whose sigmoid is read at a separator after each step (Skywork style)"

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        return any(name.startswith("v_head.") for name in checkpoint.weights)

    def head(self) -> nn.Module:
        return self.linear_head("v_head.summary", "v_head")

    def opening(self, problem: str) -> list[int]:
        ids, bos = self.tokenizer.encode_prompt(problem + "\n"), self.tokenizer.raw.bos_token_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]
