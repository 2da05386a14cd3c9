"""The markers of thinking blocks, read off a tokenizer and its chat template.

They are looked for in this order:

1. The template renders an assistant's message that has a reasoning field: the text around it are the markers, with the line
   breaks and headers that belong to them.
2. Two added tokens that are a pair, such as ``<think>`` and ``</think>``.
3. Two tags in the text of the template that are a pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Markers, Message
from rksc_tot.engine.tokenization.text import TextTokenizer

FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Fields of an assistant's message in which templates expect its thinking."""
QUESTION, THINKING, REPLY = "Question0", "Thinking0", "Reply0"
ASKED: list[Message] = [{"role": "user", "content": QUESTION}]
PAIRS = (("start", "end"), ("begin", "end"), ("open", "close"), ("bo", "eo"))
"""Parts of names that tell an opening from a closing marker."""
_STEM = re.compile("think|thought|reason", re.IGNORECASE)
_TAG = re.compile(
    r"(?P<left>[<\[◁]\|?)/(?P<name>[\w:|-]*(?:think|thought|reason)[\w:|-]*)(?P<right>[>\]▷])", re.IGNORECASE
)
_SWITCH = re.compile(r"(?<![\w.'\"<\[|/])\w*think(?:ing)?(?![\w'\"])")


class BlockMarkers(NamedTuple):
    """The markers of thinking blocks, and the text that belongs to them.

    Attributes
    ----------
    opener, closer
        The markers.
    opening
        The opener with what follows it in the template.
    lead
        What stands before a closer that is appended.
    reply
        What follows the closer and begins the reply.
    turn
        What begins a message between a block and its reply, if these are two messages of their own (channels); else empty.
    source
        Where they were found.
    """

    opener: str
    closer: str
    opening: str
    lead: str
    reply: str
    turn: str
    source: str

    @property
    def header(self) -> str:
        """What begins a reply without a block, if replies have headers of their own; else empty."""
        return self.reply.removeprefix(self.turn) if self.turn else ""

    def direct_reply(self, text: str) -> str:
        """What must follow a text, which ends where the model's turn begins, so that a reply without thinking comes next."""
        if text.rstrip().endswith(self.opener):
            return self.lead.removeprefix("\n" if text.endswith("\n") else "") + self.closer + self.reply
        return self.header if self.turn and text.endswith(self.turn) else ""


def thinking_switches(tokenizer: TextTokenizer, on: bool) -> dict[str, Any]:
    """The arguments by which the chat template turns thinking on or off, such as ``enable_thinking``."""
    return dict.fromkeys(_SWITCH.findall(str(tokenizer.raw.chat_template or "")), on)


def block_markers(tokenizer: TextTokenizer, named: Markers | None) -> BlockMarkers:
    """The markers that the user named, else those of :func:`known_markers`.

    Raises
    ------
    ConfigError
        If there are none.
    """
    if named is not None:
        opening, closing, *reply = named
        lead, closer, after = closing.partition(closing.strip())
        return BlockMarkers(opening.strip(), closer, opening, lead, "".join([after, *reply]), "", "named")
    found = known_markers(tokenizer)
    if found is None:
        fields, added = ", ".join(FIELDS), len(tokenizer.raw.added_tokens_decoder)
        raise ConfigError(
            f"no thinking markers were found: the chat template renders none of the fields {fields}, and neither the "
            f"{added} added tokens nor the tags in the template have a pair such as <think> and </think>",
            hint="name them, such as Thinking(markers=('<think>', '</think>')), or --thinking-markers '<think>,</think>'",
        )
    return found


def known_markers(tokenizer: TextTokenizer) -> BlockMarkers | None:
    """The markers of the tokenizer and its chat template, None if there are none."""
    return _read(tokenizer, str(tokenizer.raw.chat_template or ""))


@lru_cache(maxsize=16)
def _read(tokenizer: TextTokenizer, template: str) -> BlockMarkers | None:
    return (template and _rendered(tokenizer)) or _paired(tokenizer, template)


def opened_at(text: str, opener: str, closer: str, begun: int) -> int | None:
    """Where a prompt opens a block that it does not close; None if it opens none.

    An opening marker counts at the end of the prompt, and from ``begun`` on, where the assistant's own text begins.
    """
    at = text.rfind(opener)
    inside = text[at + len(opener) :]
    return at if at >= 0 and closer not in inside and (at >= begun or not inside.strip()) else None


def _rendered(tokenizer: TextTokenizer) -> BlockMarkers | None:
    """The markers around a reasoning field."""
    reply: Message = {"role": "assistant", "content": REPLY, **dict.fromkeys(FIELDS, THINKING)}
    asked = _render(tokenizer, ASKED, add_generation_prompt=False)
    prompt = _render(tokenizer, ASKED, add_generation_prompt=True)
    whole = _render(tokenizer, [*ASKED, reply], add_generation_prompt=False)
    before, thinking, rest = whole.partition(THINKING)
    between, replied, _ = rest.partition(REPLY)
    if not (thinking and replied and between.strip() and prompt.startswith(asked)):
        return None
    closer = _first_marker(tokenizer, between)
    lead, _, after = between.partition(closer)
    turn = prompt[len(asked) :]
    opener = _opener_of(closer) if _opener_of(closer) in before[len(asked) :] else ""
    if opener:
        opening = before[before.rindex(opener) :]
    elif before.startswith(prompt) and before != prompt:
        opening = before[len(prompt) :]
    else:
        return None
    is_turn = bool(turn.strip()) and after.lstrip().startswith(turn)
    return BlockMarkers(
        opener or opening.strip(),
        closer,
        opening,
        lead,
        after,
        turn if is_turn else "",
        "rendered by the chat template",
    )


def _paired(tokenizer: TextTokenizer, template: str) -> BlockMarkers | None:
    """A pair of added tokens, or of tags in the template."""
    names = [str(token.content) for token in tokenizer.raw.added_tokens_decoder.values()]
    tags = [match.group() for match in _TAG.finditer(template)]
    for source, closers, openers in (
        ("a pair of added tokens", names, names),
        ("tags in the chat template", tags, None),
    ):
        for closer in closers:
            opener = _opener_of(closer)
            if opener and (openers is None or opener in openers):
                opening = _self_opened(tokenizer, opener) or opener
                lead, reply = ("\n", "\n\n") if opening.endswith("\n") else ("", "")  # a block on lines of its own
                return BlockMarkers(opener, closer, opening, lead, reply, "", source)
    return None


def _self_opened(tokenizer: TextTokenizer, opener: str) -> str:
    """How the template opens a block at the end of a prompt; empty if it does not."""
    prompt = _render(tokenizer, ASKED, add_generation_prompt=True)
    at = prompt.rfind(opener)
    return prompt[at:] if at >= 0 and prompt[at:].strip() == opener else ""


def _opener_of(closer: str) -> str:
    """The opening marker of a pair; empty if the name of the closing marker is not one of a thinking block."""
    if not _STEM.search(closer):
        return ""
    if "/" in closer[1:3]:
        return closer.replace("/", "", 1)
    for opens, closes in PAIRS:
        for form in (str, str.upper, str.title):
            if form(closes) in closer:
                return closer.replace(form(closes), form(opens), 1)
    return ""


def _first_marker(tokenizer: TextTokenizer, text: str) -> str:
    """The first added token or tag in a text; without one, the text itself."""
    names: Iterable[str] = (str(token.content) for token in tokenizer.raw.added_tokens_decoder.values())
    found = [(text.index(name), -len(name), name) for name in names if name.strip() and name in text]
    found += [(match.start(), -len(match.group()), match.group()) for match in _TAG.finditer(text)]
    return min(found)[2] if found else text.strip()


def _render(tokenizer: TextTokenizer, messages: Sequence[Message], **how: Any) -> str:
    """Messages in the chat template; empty if it refuses them."""
    if not tokenizer.raw.chat_template:
        return ""
    try:
        return str(
            tokenizer.raw.apply_chat_template(
                list(messages), tokenize=False, **how, **thinking_switches(tokenizer, True)
            )
        )
    except Exception:  # a template is a program: it may raise anything
        return ""
