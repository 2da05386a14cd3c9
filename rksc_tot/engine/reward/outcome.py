"""Sequence-classification reward models: one score for a whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from rksc_tot.engine.reward.chat_turns import ChatTurns
from rksc_tot.engine.reward.format import RewardFormat

if TYPE_CHECKING:
    from rksc_tot.engine.reward.checkpoint import Checkpoint


class OutcomeModel(RewardFormat):
    """The problem as a user turn and all thoughts as the assistant's; the head is read at the end of that turn.

    Without a chat template: problem and thoughts as lines; the head is read at the last line break. The sigmoid of a scalar is
    its score.
    """

    kind = "outcome"
    what = "a sequence-classification head, read once at the end of the whole answer (outcome reward model)"
    judges_steps = False

    def __init__(self, checkpoint: Checkpoint, marker: str | None = None) -> None:
        super().__init__(checkpoint, marker)
        chat = bool(checkpoint.tokenizer.chat_template)
        self._turns = ChatTurns(self.tokenizer, ["user", "assistant"]) if chat else None
        self.reading = self.tokenizer.encode("\n") if self._turns is None else self._turns.tokens(2)

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        return checkpoint.architecture.endswith("ForSequenceClassification")

    def head(self) -> nn.Module:
        return self.linear_head("score", "classifier")

    def opening(self, problem: str) -> list[int]:
        if self._turns is None:
            return self.tokenizer.encode_prompt(problem + "\n")
        return self._turns.tokens(0, problem, 1)

    def step(self, text: str, first: bool) -> list[int]:
        return self.tokenizer.continuation(text if first else self.marker + text)
