"""Prompts from rows: templates that see nothing but the fields of a row, few-shot examples, and a system prompt."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.task import ChatOrText, Message, Prompt

PIECE = re.compile(r"\{\{|\}\}|\{([^{}\n]+)\}")
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Template:
    """A text with fields of a row in braces, such as ``Question: {question}``.

    ``{{`` and ``}}`` are braces, and so is a brace that encloses no name, as in ``\\boxed{}``. What stands in braces is the exact
    name of a field: attributes, indices, conversions and formats do not exist. A value is inserted as it is and never read as a
    template. Numbers, lists, dicts, true and false are inserted as JSON.
    """

    text: str

    @property
    def fields(self) -> list[str]:
        """The names of the fields, each once."""
        return list(dict.fromkeys(piece[1] for piece in PIECE.finditer(self.text) if piece[1]))

    def fault(self, row: Mapping[str, Any]) -> str | None:
        """Why the template does not fit a row, as a predicate such as ``has no field 'question'``; None if it does."""
        for field in self.fields:
            if field not in row:
                return f"has no field {shown(field)}; it has {', '.join(map(repr, row)) or 'none'}"
            if (text := field_text(row[field])) is None:
                return f"has {shown(row[field])} in the field {field!r}, which is not a text"
            if any("\ud800" <= c <= "\udfff" for c in text):
                return f"has half a character (a lone surrogate) in the field {field!r}"
        return None

    def render(self, row: Mapping[str, Any]) -> str:
        """The text for a row that has no :meth:`fault`."""
        return PIECE.sub(lambda piece: field_text(row[piece[1]]) or "" if piece[1] else piece[0][0], self.text)


def field_text(value: object) -> str | None:
    """The text of a field's value; None if it has none: null, NaN, a list or dict with NaN in it, or an object."""
    if isinstance(value, str):
        return value
    if callable(item := getattr(value, "item", None)):  # a numpy scalar
        try:
            with calling_user_code("item"):
                value = item()
        except UserCodeError:
            return None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class RowPrompt:
    """Makes the prompt of a row.

    * ``messages``: the templates of the chat messages, with their roles. Without ``chat`` there is one, the user's.
    * ``system``: the template of the system message, or of the text before everything else; None: none.
    * ``examples``: few-shot examples: rows with their replies.
    * ``chat``: True: chat messages. False: a text. None: a text on a model without a chat template.
    """

    messages: tuple[tuple[str, Template], ...]
    system: Template | None = None
    examples: tuple[tuple[Mapping[str, Any], str], ...] = ()
    chat: bool | None = None

    @property
    def templates(self) -> list[Template]:
        """All templates that a row must fit."""
        return [template for _, template in self.messages] + ([self.system] if self.system is not None else [])

    @property
    def fields(self) -> list[str]:
        """The names of all fields, each once."""
        return list(dict.fromkeys(field for template in self.templates for field in template.fields))

    def fault(self, row: Mapping[str, Any]) -> str | None:
        """Why a row does not fit, as a predicate; None if it does."""
        return next((fault for template in self.templates if (fault := template.fault(row))), None)

    def render(self, row: Mapping[str, Any]) -> Prompt:
        """The prompt of a row that has no :meth:`fault`."""
        if self.chat is False:
            return self._text(row)
        messages = list(self._turns(row))
        return messages if self.chat else ChatOrText(messages, self._text(row))

    def _turns(self, row: Mapping[str, Any]) -> Iterator[Message]:
        if self.system is not None:
            yield {"role": "system", "content": self.system.render(row)}
        for example, reply in self.examples:
            turns = [{"role": role, "content": template.render(example)} for role, template in self.messages]
            opening = turns.pop()["content"] if turns[-1]["role"] == "assistant" else ""
            yield from (*turns, {"role": "assistant", "content": opening + reply})
        for role, template in self.messages:
            yield {"role": role, "content": template.render(row)}

    def _text(self, row: Mapping[str, Any]) -> str:
        [(_, template)] = self.messages
        before = [] if self.system is None else [self.system.render(row)]
        for example, reply in self.examples:
            asked = template.render(example)
            between = "" if asked[-1:].isspace() else " " if asked.endswith(":") else "\n"
            before.append(asked + between + reply)
        return "\n\n".join([*before, template.render(row)])


def row_prompt(
    prompt: str | Sequence[Mapping[str, str]],
    system: str | None,
    examples: Sequence[tuple[Mapping[str, Any], str]],
    chat: bool | None,
) -> RowPrompt:
    """The prompt maker of these templates.

    Raises
    ------
    ConfigError
        If a template is not a text, a role is unknown, or messages are given for a prompt that is a text.
    """
    if system is not None and not isinstance(system, str):
        raise ConfigError(f"system is {shown(system)}", hint="give a text")
    first = None if system is None else Template(system)
    if isinstance(prompt, str):
        return RowPrompt((("user", Template(prompt)),), first, tuple(examples), chat)
    if chat is False:
        raise ConfigError("the prompt is chat messages, but chat is False", hint="give the prompt as a text")
    messages: list[tuple[str, Template]] = []
    for message in _list(prompt):
        if not isinstance(message, Mapping) or not all(
            isinstance(message.get(key), str) for key in ("role", "content")
        ):
            raise ConfigError(f"the prompt holds {shown(message)}", hint="give messages with role and content")
        if message["role"] not in ROLES:
            raise ConfigError(f"the prompt has the role {shown(message['role'])}", hint=f"use {', '.join(ROLES)}")
        messages.append((message["role"], Template(message["content"])))
    if messages and messages[0][0] == "system":
        if first is not None:
            raise ConfigError("the prompt has a system message, and system is given", hint="leave one of them out")
        first = messages.pop(0)[1]
    if not messages:
        raise ConfigError("the prompt holds no message", hint='add {"role": "user", "content": "{question}"}')
    return RowPrompt(tuple(messages), first, tuple(examples), True)


def _list(prompt: object) -> list[Any]:
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise ConfigError(f"the prompt is {shown(prompt)}", hint='give a text such as "{question}", or chat messages')
    return list(prompt)
