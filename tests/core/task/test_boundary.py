"""Boundaries: where thoughts of each kind end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task.boundary import Boundary
from rksc_tot.engine.tokenization.find_stops import find_end

STEPS = "Sure!\n\n1. Add 3.5 m.\n   2. not a step\n\n2. Double it.\n3. Stop."
CODE = "Look:\n```py\nprint('```')\n```\nDone.\n"


def thoughts(name, text):
    """The thoughts of a text, and what is left at its end."""
    boundary, found = Boundary.of(name), []
    while (end := find_end(text, 0, boundary.stop, True, boundary.rule)) is not None:
        found.append(text[: end[0]].strip())
        text = text[end[1] :]
    return found, text.strip()


@pytest.mark.parametrize(
    ("name", "text", "found", "rest"),
    [
        ("lines", "\na\nb\nc", ["a", "b"], "c"),
        ("lines:2", "\na\n\nb\nc\nd", ["a\n\nb"], "c\nd"),
        ("paragraphs", "a\nb\n\nc\n\nd", ["a\nb", "c"], "d"),
        ("paragraphs:2", "a\n\n\n\nb\n\nc", ["a\n\n\n\nb"], "c"),
        ("numbered", STEPS, ["Sure!\n\n1. Add 3.5 m.\n   2. not a step", "2. Double it."], "3. Stop."),
        ("numbered", "**Step 7:** a\nb\n**Step 8:** c", ["**Step 7:** a\nb"], "**Step 8:** c"),
        ("numbered", "1. It has\n2.5 m\n", [], "1. It has\n2.5 m"),
        ("tag:step", "<step>a\n\nb</step>\n<step>c</step>d", ["<step>a\n\nb", "<step>c"], "d"),
        ("sentences", "It is 3.5. Is it? Yes", ["It is 3.5.", "Is it?"], "Yes"),
        ("sentences:2", "1. One. Two!\nx = 4\ny", ["1. One. Two!"], "x = 4\ny"),
        ("fences", CODE * 2, [CODE.removesuffix("\nDone.\n"), "Done.\n" + CODE.removesuffix("\nDone.\n")], "Done."),
        ("tokens:4", "a\nb\n\nc", [], "a\nb\n\nc"),
        ("whole", "a\nb\n\nc", [], "a\nb\n\nc"),
    ],
)
def test_a_boundary_divides_a_text_into_thoughts(name, text, found, rest):
    assert thoughts(name, text) == (found, rest)


NAMES = ("lines:2", "paragraphs:2", "numbered", "sentences", "sentences:2", "fences")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["1.", "2)", "a", "B", " ", "\n", "\n\n", ".", "!", "```", "~~~", "\t", "3"]), max_size=14)
)
def test_more_text_does_not_move_the_end_that_a_rule_has_found(pieces):
    text = "".join(pieces)
    for name in NAMES:
        ends = [Boundary.of(name).rule.find(text[:length]) for length in range(len(text) + 1)]
        known = [end for end in ends if end is not None]
        assert known == [known[0]] * len(known) if known else True
        assert all(end is None for end in ends[: len(ends) - len(known)])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sentence", "there is no boundary 'sentence' - did you mean 'sentences'? there are lines, paragraphs"),
        ("lines:", "there is no boundary"),
        ("tag", "write its name, such as tag:step"),
        ("tag:<b>", "write its name"),
        ("tokens", "tokens has no number"),
        ("lines:0", "lines has the number '0'"),
        ("sentences:two", "write a number from 1"),
        ("whole:3", "whole takes no number"),
    ],
)
def test_an_unknown_boundary_is_refused_with_a_hint(name, words):
    with pytest.raises(ConfigError, match=r".*") as error:
        Boundary.of(name)
    assert words in str(error.value)
