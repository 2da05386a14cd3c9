"""The base of formats: what a kind of reward model reads, where, and by which head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from rksc_tot.engine.reward.head import RewardModel, two_classes
from rksc_tot.engine.tokenization.text import TextTokenizer

if TYPE_CHECKING:
    from rksc_tot.engine.reward.checkpoint import Checkpoint


class RewardFormat:
    """One kind of reward model. A subclass lays out the tokens of a path and finds the head.

    Parameters
    ----------
    checkpoint
        The folder.
    marker
        The text of the token at which steps are read, or that separates steps; None: as usual for this kind.

    Attributes
    ----------
    kind
        The name of the kind.
    what
        What was found, in a phrase.
    judges_steps
        Whether each step has a score; else only the whole text has one.
    reading
        Tokens at whose end the head is read, after the path. They do not stay on the path.
    """

    kind: ClassVar[str]
    what: ClassVar[str]
    usual_marker: ClassVar[str] = "\n"
    judges_steps: ClassVar[bool] = True
    reading: Sequence[int] = ()

    def __init__(self, checkpoint: Checkpoint, marker: str | None = None) -> None:
        self.checkpoint = checkpoint
        self.marker = self.usual_marker if marker is None else marker
        self.tokenizer = TextTokenizer(checkpoint.tokenizer, [self.marker])

    @classmethod
    def fits(cls, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is of this kind."""
        raise NotImplementedError

    def model(self) -> RewardModel:
        """The backbone with its head. Raises ModelLoadError if the head is missing or has another shape."""
        return RewardModel(self.checkpoint.backbone(), self.head())

    def head(self) -> nn.Module:
        """The head: hidden states ``[…, H]`` to logits ``[…, 2]``."""
        raise NotImplementedError

    def opening(self, problem: str) -> list[int]:
        """Tokens before the first step."""
        raise NotImplementedError

    def step(self, text: str, first: bool) -> list[int]:
        """Tokens of a step after the path so far. The head is read after the last of them, or of :attr:`reading`."""
        raise NotImplementedError

    # -- for subclasses ----------------------------------------------------------------------------------------------

    def marker_id(self, text: str) -> int:
        """The id of a text that must be one token. Raises ModelLoadError if it is none, or more than one."""
        raw = self.tokenizer.raw
        ids = raw.encode(text, add_special_tokens=False)
        if len(ids) != 1 or ids[0] == raw.unk_token_id:
            raise self.checkpoint.error(
                f"its tokenizer makes {len(ids)} tokens of the marker {text!r}, not one, so it has another vocabulary",
                "give the tokenizer that the model was trained with, or name the marker",
            )
        return int(ids[0])

    def linear_head(self, *names: str) -> nn.Linear:
        """The linear head with one of these names, of one or two classes."""
        name = next((name for name in names if f"{name}.weight" in self.checkpoint.weights), None)
        if name is None:
            wanted = f"no weights are named {' or '.join(names)}"
            raise self.checkpoint.error(f"the head is missing: {wanted}", "give a whole checkpoint")
        weight = self.checkpoint.tensor(f"{name}.weight")
        self.check_head(name, weight.shape, (1, 2))
        biased = f"{name}.bias" in self.checkpoint.weights
        return two_classes(weight, self.checkpoint.tensor(f"{name}.bias") if biased else None)

    def check_head(self, name: str, shape: Sequence[int], classes: Sequence[int]) -> None:
        """Raise ModelLoadError unless a head of this shape fits the backbone."""
        width = self.checkpoint.config.get_text_config().hidden_size
        if len(shape) != 2 or shape[0] not in classes or shape[1] != width:
            wanted = " or ".join(map(str, classes))
            raise self.checkpoint.error(
                f"the head {name} has the shape {tuple(shape)}; it must have {wanted} rows of {width} numbers",
                "give a checkpoint of a kind that is supported",
            )
