"""The user's functions that replace a language model in the mock engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from rksc_tot.core.errors import EngineError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code
from rksc_tot.core.task import ChatOrText, Markers, Prompt
from rksc_tot.engine.base import AppendedText, GenerateRequest, LabelRequest, ThinkingFormat
from rksc_tot.engine.tokenization.chat_template import opens_reply
from rksc_tot.engine.tokenization.find_stops import leading_stops
from rksc_tot.engine.tokenization.label_trie import LabelTrie, check_labels
from rksc_tot.engine.tokenization.thinking import opened_at

Writer = Callable[[str, random.Random], str | tuple[str, float]]
Labeller = Callable[[str, Prompt, tuple[str, ...]], Mapping[str, float]]
LogitLens = Callable[[str, Prompt, tuple[str, ...], int], Mapping[str, float]]


class MockModel:
    """Calls a user's functions and checks what they return; for the parameters see ``MockEngine``."""

    def __init__(self, writer: Writer, labeller: Labeller | None, lens: LogitLens | None) -> None:
        self._writer = writer
        self._labeller = labeller
        self._lens = lens

    def write(self, context: str, rng: random.Random) -> tuple[str, float]:
        """The writer's continuation of a text, and the log-probability of each of its characters.

        Raises
        ------
        EngineError
            If the writer raises or returns something else.
        """
        try:
            with calling_user_code("the writer"):
                draft = self._writer(context, rng)
                raw, logprob = (draft, -0.5) if isinstance(draft, str) else draft
                return raw + "", float(logprob)
        except UserCodeError as raised:
            raise EngineError(str(raised), hint="return a string, or a string and a number") from raised.error

    def write_thought(self, context: str, rng: random.Random, request: GenerateRequest) -> tuple[str, float]:
        """The text of one branch. The writer is called again while the text is only stop strings to be skipped."""
        raw, logprob = more, _ = self.write(context, rng)
        while request.skip_blank and more and leading_stops(raw, request.stop) == len(raw) < request.max_tokens:
            more, logprob = self.write(context + raw, rng)
            raw += more
        return raw, logprob

    def read(
        self, text: str, question: Prompt, labels: Sequence[str], layer: int | None
    ) -> tuple[tuple[float, ...], float]:
        """Label probabilities after a layer (None: the last), which sum to 1, and the probability of anything else.

        Raises
        ------
        EngineError
            If the labeller or the lens raises or returns something else.
        """
        equal, asked = (1 / len(labels),) * len(labels), (text, question, tuple(labels))
        if self._labeller is None:
            return equal, 0.0
        try:
            with calling_user_code("the labeller"):
                given = self._labeller(*asked) if layer is None or self._lens is None else self._lens(*asked, layer)
                weights = [float(given.get(label, 0.0)) for label in labels]
        except UserCodeError as raised:
            raise EngineError(str(raised), hint="return the probability of each label") from raised.error
        total = sum(weights)
        return (tuple(weight / total for weight in weights), max(0.0, 1 - total)) if total > 0 else (equal, 1.0)


def render(prompt: Prompt) -> str:
    """A prompt as one text: a string as it is, chat messages as turns. A last turn of the assistant stays open."""
    if isinstance(prompt, str | ChatOrText):
        return prompt if isinstance(prompt, str) else prompt.text
    text = "".join(f"{turn['role']}: {turn['content']}\n" for turn in prompt)
    return text + "assistant: " if opens_reply(prompt) else text.removesuffix("\n")


def label_trie(request: LabelRequest) -> LabelTrie:
    """The labels of a request as tokens, which are characters; they stand directly after the question.

    Raises
    ------
    EngineError
        If labels are not two or more different texts.
    """
    check_labels(request.labels)
    question = list(map(ord, render(request.question)))
    return LabelTrie(request.labels, question, tuple((tuple(map(ord, label.strip())),) for label in request.labels), {})


def thinking_format(prompt: Prompt, markers: Markers | None) -> ThinkingFormat:
    """How thinking blocks are written after a prompt; a token is a character."""
    opening, closing, *reply = markers or ("<think>", "</think>")
    opener, closer, text = opening.strip(), closing.strip(), render(prompt)
    at = opened_at(text, opener, closer, len(text) if isinstance(prompt, str) or opens_reply(prompt) else 0)
    base, opened = (text, opening) if at is None else (text[:at], text[at:])
    after = closing.partition(closer)[2] + "".join(reply)
    parts = (opened, opening, closing + "".join(reply), after, "")
    return ThinkingFormat(
        opener,
        closer,
        "named",
        at is not None,
        tuple(map(ord, base)),
        *(AppendedText(part, tuple(map(ord, part))) for part in parts),
    )
