"""Stop strings and cuts."""

import pytest

from rksc_tot.engine.tokenization.find_stops import Cut, cut_at, find_end, find_stop, leading_stops


@pytest.mark.parametrize(
    ("text", "searched", "stop", "expected"),
    [
        ("ab\ncd", 2, ("\n",), (2, 3)),
        ("abENDcd", 4, ("END",), (2, 5)),  # begun before what was searched
        ("ab", 0, ("\n",), None),
        ("a.\n\n", 1, ("\n", "\n\n"), (2, 4)),  # the longest at the earliest place
        ("xSTOPy\n", 1, ("\n", "STOP"), (1, 5)),
    ],
)
def test_the_earliest_then_longest_stop_counts(text, searched, stop, expected):
    assert find_stop(text, searched, stop) == expected


@pytest.mark.parametrize(
    ("text", "searched", "expected", "begin"),
    [
        ("\n", 0, None, 1),
        ("\n\n", 1, None, 2),
        (" \n", 1, None, 2),  # a line of white space
        ("\nSTOP\none", 3, None, 6),
        ("\none", 1, None, 1),
        ("\none\n", 4, (4, 5), 1),
        ("\none\n", 0, (4, 5), 1),  # all of it in one token
        ("one\n\n", 3, (3, 4), 0),
        ("", 0, None, 0),
    ],
)
def test_leading_stop_strings_are_skipped_with_skip_blank(text, searched, expected, begin):
    stop = ("\n", "STOP")
    assert find_end(text, searched, stop, skip_blank=True) == expected
    assert leading_stops(text, stop) == begin
    assert find_end(text, searched, stop, skip_blank=False) == find_stop(text, searched, stop)


@pytest.mark.parametrize(
    ("ends", "text", "length", "cut"),
    [
        ([1, 3, 6], "abcdef", 6, Cut(3, "")),
        ([1, 3, 6], "abcdef", 3, Cut(2, "")),
        ([1, 3, 6], "abcdef", 5, Cut(2, "de")),  # through a token
        ([3, None, 4], "abcd", 3, Cut(1, "")),  # the second token's bytes belong to "d"
        ([None, 4], "abcd", 3, Cut(0, "abc")),  # the first token ends inside a character
        ([0, 0], "", 0, Cut(0, "")),
    ],
)
def test_a_cut_keeps_whole_tokens_and_the_rest_as_text(ends, text, length, cut):
    assert cut_at(ends, text, length) == cut
