"""Rewards: whether an answer is right for a row, and which answers are the same in votes.

====================  ==================================================================================================
``exact``             equal texts, except for spaces, case and a full stop at the end
``numeric``           equal numbers, to six digits, with thousands separators and units: 1,200 g is 1200 g, not 1200 kg
``math``              equal expressions, by the package math-verify (extra ``math``)
``choice``            the same letter; a target that is a whole number counts the choices from 0
``json``              equal JSON values; the order of keys does not matter
``module:function``   a function of row and answer: True, False, None if it cannot tell, or a number that is right from 1 on
====================  ==================================================================================================
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.plugins.nearest import did_you_mean
from rksc_tot.core.plugins.strict_json import parse_strictly
from rksc_tot.core.plugins.user_code import shown
from rksc_tot.tasks.rows.answers import ChoiceLetter
from rksc_tot.tasks.rows.functions import named_function
from rksc_tot.tasks.rows.math_verify_process import same_expression
from rksc_tot.tasks.rows.numeric_equality import quantity, same_quantity

FORMS = "exact, numeric, math, choice, json, module:function"


class Reward:
    """Compares answers with the targets of rows. ``name``: as it is written in a setting."""

    name = "exact"

    def right(self, row: Mapping[str, Any], answer: str, target: Any) -> bool | None:
        """Whether the answer is right. ``target``: the right answer, None if the row has none. None: cannot tell."""
        return None if target is None else self.same(answer, target)

    def same(self, answer: str, target: Any) -> bool:
        """Whether an answer is the target."""
        return self.form(answer) == self.form(_text(target))

    def form(self, answer: str) -> Hashable:
        """The form of an answer that counts in votes: answers with equal forms are the same."""
        return " ".join(answer.split()).removesuffix(".").rstrip().casefold()

    def fault(self, target: Any) -> str | None:
        """Why a target cannot be compared, such as ``is no number``; None if it can."""
        return None


class Numeric(Reward):
    """Equal numbers."""

    name = "numeric"

    def same(self, answer: str, target: Any) -> bool:
        """Whether both are the same number."""
        one, other = quantity(answer), quantity(_text(target))
        return one is not None and other is not None and same_quantity(one, other)

    def form(self, answer: str) -> Hashable:
        """The value of the number."""
        found = quantity(answer)
        return super().form(answer) if found is None else found.value

    def fault(self, target: Any) -> str | None:
        """Whether the target is a number."""
        return None if quantity(_text(target)) is not None else "is not one number"


class MathVerify(Reward):
    """Equal mathematical expressions."""

    name = "math"

    def same(self, answer: str, target: Any) -> bool:
        """Whether math-verify finds both equal."""
        return same_expression(_text(target), answer)

    def form(self, answer: str) -> Hashable:
        """The value of a number, else the text without spaces."""
        found = quantity(answer)
        return "".join(answer.split()) if found is None or found.unit else found.value


class SameChoice(Reward):
    """The same letter."""

    name = "choice"

    def form(self, answer: str) -> Hashable:
        """The letter, else the text."""
        return _letter(answer) or super().form(answer)

    def same(self, answer: str, target: Any) -> bool:
        """Whether both are the same letter."""
        return self.form(answer) == _letter(target)

    def fault(self, target: Any) -> str | None:
        """Whether the target is a letter or the number of a choice."""
        return None if _letter(target) else "is neither a letter from A to J nor a number from 0 to 9"


class SameJson(Reward):
    """Equal JSON values."""

    name = "json"

    def form(self, answer: str) -> Hashable:
        """The value in one form, else the text."""
        try:
            return json.dumps(_plain(parse_strictly(answer)), sort_keys=True)
        except ValueError:
            return super().form(answer)

    def same(self, answer: str, target: Any) -> bool:
        """Whether both are the same value."""
        return self.form(answer) == self.form(target if isinstance(target, str) else json.dumps(target))

    def fault(self, target: Any) -> str | None:
        """Whether the target is a JSON value, or JSON."""
        try:
            parse_strictly(target if isinstance(target, str) else json.dumps(target))
        except (TypeError, ValueError):
            return "is not JSON"
        return None


class RewardFunction(Reward):
    """A function of row and answer."""

    def __init__(self, function: Callable[[Any, str], object], votes: Reward) -> None:
        """``votes``: says which answers are the same."""
        self._function, self.form = function, votes.form  # type: ignore[method-assign]
        self.name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__name__)}"

    def right(self, row: Mapping[str, Any], answer: str, target: Any) -> bool | None:
        """What the function says; a number is right from 1 on."""
        found = self._function(row, answer)
        if found is None or isinstance(found, bool):
            return found
        value = float(found)  # type: ignore[arg-type]
        if not math.isfinite(value):
            raise ValueError(f"the reward is {value}")
        return value >= 1


REWARDS: dict[str, type[Reward]] = {each.name: each for each in (Reward, Numeric, MathVerify, SameChoice, SameJson)}
USUAL = {"number": "numeric", "choice": "choice", "json": "json"}
"""The reward for each form of answers; ``exact`` for all others."""


def reward_for(given: str | Callable[[Any, str], object] | None, answers: str) -> Reward:
    """The reward that a setting describes. None: the usual one for answers of that form.

    Raises
    ------
    ConfigError
        If there is no such reward.
    MissingExtra
        If the reward is ``math`` and math-verify is not installed.
    """
    usual = REWARDS[USUAL.get(answers, "exact")]()
    if given is None:
        return usual
    if not isinstance(given, str):
        if callable(given):
            return RewardFunction(given, usual)
        raise ConfigError(f"reward is {shown(given)}", hint=f"there are {FORMS}")
    if given in REWARDS:
        if given == "math":
            same_expression("1", "1")  # MissingExtra now, not after the first search
        return REWARDS[given]()
    function = named_function("reward", given)
    if function is None:
        raise ConfigError(f"there is no reward {given!r}", hint=f"{did_you_mean(given, REWARDS)}there are {FORMS}")
    return RewardFunction(function, usual)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _letter(value: Any) -> str | None:
    text = _text(value).strip()
    if text.isascii() and text.isdigit() and len(text) == 1 and not isinstance(value, bool):
        return chr(ord("A") + int(text))
    return ChoiceLetter().find(text) or (text.upper() if len(text) == 1 and text.upper() in "ABCDEFGHIJ" else None)


def _plain(value: Any) -> Any:
    """A JSON value in which 1.0 is 1."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
