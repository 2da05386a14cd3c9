"""Numbers in texts, with thousands separators and units."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

SEPARATOR = "[,_\u00a0\u202f\u2009]"
NUMBER = re.compile(
    rf"(?<![\w.])[-+\u2212]?"
    rf"(?:(?:\d{{1,3}}(?:{SEPARATOR}\d{{3}})+(?!\d)|\d+)(?:/\d+|(?:\.\d+)?(?:[eE][-+]?\d{{1,3}}(?!\w))?)|\.\d+)",
    re.ASCII,
)
LONGEST = 400  # characters of a number
TOLERANCE = Fraction(1, 10**6)
UNIT = re.compile(r"\s*(%|°\s*[a-z]+|[^\W\d_]+(?:[/^][^\W_]+)*|[$€£¥])", re.IGNORECASE)
CURRENCY = {"dollar": "$", "usd": "$", "euro": "€", "eur": "€", "pound": "£", "gbp": "£", "yen": "¥", "percent": "%"}
NO_UNITS = {"a", "an", "and", "each", "for", "in", "is", "more", "of", "per", "to", "total", "x"}


class Quantity(NamedTuple):
    """A number with its unit; the unit is empty if there is none."""

    value: Fraction
    unit: str


def numbers_in(text: str) -> list[str]:
    """The numbers in a text, as they are written there."""
    return NUMBER.findall(text)


def quantity(text: str) -> Quantity | None:
    """The only number in a text, with the unit next to it; None if there is no number, or more than one.

    A currency sign may stand before the number, the first word of any other unit after it.
    """
    found = list(NUMBER.finditer(text))
    if len(found) != 1:
        return None
    [number] = found
    value = _value(number[0])
    sign = text[: number.start()].rstrip(" -\\")[-1:]
    after = UNIT.match(text, number.end())
    unit = sign if sign in "$€£¥" and sign else after[1].lower() if after else ""
    if len(unit) > 3 and unit.endswith("s"):
        unit = unit[:-1]
    unit = "" if unit in NO_UNITS else CURRENCY.get(unit, unit)
    return None if value is None else Quantity(value, unit)


def same_quantity(one: Quantity, other: Quantity) -> bool:
    """Whether two numbers are equal to six digits, and their units are the same, if both have one."""
    if one.unit and other.unit and one.unit != other.unit:
        return False
    return abs(one.value - other.value) <= TOLERANCE * max(Fraction(1), abs(one.value), abs(other.value))


def _value(written: str) -> Fraction | None:
    """The value of a number; None if it is too long, or divides by 0."""
    plain = re.sub(SEPARATOR, "", written).replace("\u2212", "-")
    if len(plain) > LONGEST:
        return None
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None
