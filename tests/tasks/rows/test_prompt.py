"""Prompts from rows: templates, roles, few-shot examples."""

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import ChatOrText
from rksc_tot.tasks.rows.prompt import Template, row_prompt

ROW = {"question": "2 + {x}?", "n": 3.0, "flag": True, "list": ["a", 1], "a.b": "dotted"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Q: {question}\n{question}", "Q: 2 + {x}?\n2 + {x}?"),  # a value is not read as a template
        ("{n} {flag} {list}", '3.0 true ["a", 1]'),
        (r"in \boxed{} and {{question}}", r"in \boxed{} and {question}"),
        ("{a.b}", "dotted"),
        ("a { b } c {", "a { b } c {"),
        ("{\n}", "{\n}"),
    ],
)
def test_a_template_inserts_fields_and_nothing_else(template, text):
    if template.startswith("a { b"):
        assert Template(template).fault(ROW) == "has no field ' b '; it has 'question', 'n', 'flag', 'list', 'a.b'"
    else:
        assert Template(template).fault(ROW) is None
        assert Template(template).render(ROW) == text


class Secret:
    password = "hidden"

    def __format__(self, spec):
        return "reached"

    def __str__(self):
        return "reached"

    def __getitem__(self, key):
        return "reached"


@pytest.mark.parametrize(
    "template",
    [
        "{s.password}",
        "{s[0]}",
        "{s!r}",
        "{s:>9}",
        "{s.__class__.__mro__}",
        "{question.__class__}",
        "{0}",
        "{s}",
    ],
)
def test_a_template_reaches_no_attribute_index_conversion_or_format(template):
    fault = Template(template).fault({"s": Secret(), "question": "x"})
    assert fault is not None
    assert "hidden" not in fault
    assert "reached" not in fault


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "has None in the field 'x', which is not a text"),
        (float("nan"), "has nan in the field 'x', which is not a text"),
        ({"y": [float("inf")]}, "in the field 'x', which is not a text"),
        ("\ud800", "half a character"),
        ({1, 2}, "which is not a text"),
    ],
)
def test_a_value_without_a_text_is_a_fault(value, words):
    assert words in Template("{x}").fault({"x": value})


def test_a_text_prompt_is_a_user_message_for_chat_models_only():
    made = row_prompt("{question}", "Be {n}.", [], None).render(ROW)
    assert isinstance(made, ChatOrText)
    assert list(made) == [{"role": "system", "content": "Be 3.0."}, {"role": "user", "content": "2 + {x}?"}]
    assert made.text == "Be 3.0.\n\n2 + {x}?"
    assert row_prompt("{question}", None, [], False).render(ROW) == "2 + {x}?"
    assert row_prompt("{question}", None, [], True).render(ROW) == [{"role": "user", "content": "2 + {x}?"}]


def test_examples_stand_before_the_question_as_turns_or_as_text():
    shots = [({"question": "1 + 1?"}, "2")]
    made = row_prompt("{question}", None, shots, None).render({"question": "2 + 2?"})
    assert [message["content"] for message in made] == ["1 + 1?", "2", "2 + 2?"]
    assert [message["role"] for message in made] == ["user", "assistant", "user"]
    assert made.text == "1 + 1?\n2\n\n2 + 2?"
    assert (
        row_prompt("Q: {question}\nA:", None, shots, False).render({"question": "y"}) == "Q: 1 + 1?\nA: 2\n\nQ: y\nA:"
    )


def test_a_prefilled_reply_stands_before_the_reply_of_examples_too():
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "{question}"},
        {"role": "assistant", "content": "Steps: "},
    ]
    made = row_prompt(messages, None, [({"question": "q"}, "r")], None).render({"question": "x"})
    assert [(m["role"], m["content"]) for m in made] == [
        ("system", "s"), ("user", "q"), ("assistant", "Steps: r"), ("user", "x"), ("assistant", "Steps: "),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "system", "chat", "words"),
    [
        (3, None, None, "the prompt is 3 - give a text"),
        ([], None, None, "the prompt holds no message"),
        ([{"role": "user"}], None, None, "give messages with role and content"),
        ([{"role": "tool", "content": "x"}], None, None, "has the role 'tool' - use system, user, assistant"),
        ([{"role": "system", "content": "x"}], "y", None, "has a system message, and system is given"),
        ([{"role": "user", "content": "x"}], None, False, "chat messages, but chat is False"),
        ("x", 3, None, "system is 3 - give a text"),
    ],
)
def test_an_invalid_prompt_is_refused(prompt, system, chat, words):
    with pytest.raises(ConfigError, match=words):
        row_prompt(prompt, system, [], chat)
