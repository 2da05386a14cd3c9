"""Answers in texts, for each form."""

import re
import time

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.rows.answers import answer_form

TEXTS = [
    ("number", "16 - 3 = 13, so $1,234.50 a day.", "1,234.50"),
    ("number", "from 20-2 to x3", "2"),
    ("number", "-5", "-5"),
    ("number", "a half is 1/2", "1/2"),
    ("number", "about 6.02e23", "6.02e23"),
    ("number", "none", None),
    ("boxed", r"\boxed{1} then \boxed{\frac{1}{2} \}}.", r"\frac{1}{2} \}"),
    ("boxed", r"\boxed{3} and \boxed{4", "3"),
    ("boxed", r"\boxed{}", None),
    ("after:####", "#### 1\n#### 18 \nx", "18"),
    ("after:Answer:", "**answer:** 42.", "42"),
    ("after:Answer:", "Answer: 7\nAnswer:", "7"),
    ("choice", "The answer is (b).", "B"),
    ("choice", "A dog. So: C", "C"),
    ("choice", "(A) no\n(B) yes, option D", "D"),
    ("choice", "I see a dog", None),
    (r"regex:x = (\d+)", "x = 1, x = 23", "23"),
    (re.compile("y+"), "y yyy", "yyy"),
    ("json", 'a {"b": [1]} {c} [2, {"d": 3}] {"e"', '[2, {"d": 3}]'),
    ("json", "none", None),
    (lambda text: text.upper() or None, "a", "A"),
    ("builtins:len", "abc", "3"),
]


def test_an_answer_is_found_in_a_text():
    for form, text, answer in TEXTS:
        assert answer_form(form).find(text) == answer, (form, text)


REPLIES = [
    ("number", " 18. She sells 9 eggs for 2.", "18"),
    ("number", " 9 * 2 = 18 dollars.", "18"),
    ("number", " 18, as 9 * 2 = ?", "18"),
    ("number", ":\n\\[\n16 - 7 = 9\n\\]\n9 * 2 = 18", "9"),
    ("number", ":", None),
    ("boxed", r"\frac{1}{2}}", r"\frac{1}{2}"),
    ("after:####", " 18", "18"),
    ("after:####", ":\n\n18\nx", "18"),
    ("choice", " B) a dog", "B"),
    (r"regex:x = (\d+)", " 18 ", "18"),
    (r"regex:answer is (\d+)", " 18", "18"),
    ("json", ' {"a": 1}', '{"a": 1}'),
]


def test_an_answer_is_found_in_the_reply_to_the_closing():
    for form, reply, answer in REPLIES:
        found = answer_form(form)
        assert found.in_reply(found.closing, reply) == answer, (form, reply)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("numbers", "answer is 'numbers' - did you mean 'number'? there are number, boxed"),
        ("after:", "answer is 'after:'"),
        ("regex:(", "is no regular expression"),
        ("no_such_module_x:f", "cannot be imported"),
        ("math:pi", "is float - name a function"),
        (3, "answer is 3"),
        (re.compile(b"a"), "is a pattern of bytes"),
    ],
)
def test_an_unknown_form_is_refused_with_the_known_ones(form, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        answer_form(form)


def test_hostile_texts_of_a_hundred_thousand_characters_end():
    start = time.process_time()
    for form in ("number", "boxed", "after:####", "choice", "json"):
        for piece in ("1,", "\\boxed{", "#### ", "(A", "{", "[", "-.1e", "A ", "\n", " \n>", "answer "):
            answer_form(form).find(piece * (100_000 // len(piece)) + "x")
    assert time.process_time() - start < 120
