"""Thinking markers read off tokenizers and templates that behave like five known families."""

import pytest

from benchmarks.common.thinking_models import FAMILIES, thinking_tokenizer
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.tokenization.chat_template import following
from rksc_tot.engine.tokenization.path_tokens import PathTokenizer
from rksc_tot.engine.tokenization.thinking import thinking_switches
from tests.engine.conftest import byte_tokenizer

ASKED = [{"role": "user", "content": "hi"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "Step 1:"}]
SURE = [{"role": "user", "content": "sure?"}]
CHANNEL = "<|start|>assistant<|channel|>"


def tokenizer_of(family):
    raw = thinking_tokenizer(family)
    return PathTokenizer(raw, len(raw), 500)


def texts(family, prompt=ASKED, markers=None):
    tokenizer = tokenizer_of(family)
    form = tokenizer.thinking(prompt, markers)
    parts = (form.opening, form.reopening, form.closing, form.reply, form.header)
    assert all(tokenizer.tokenizer.decode(part.tokens) == part.text for part in parts)
    return tokenizer.tokenizer.decode(form.prompt), [part.text for part in parts]


@pytest.mark.parametrize(
    ("family", "prompt", "parts"),
    [
        (
            "switched",
            "<|turn|>user\nhi<|stop|>\n<|turn|>assistant\n",
            ["<think>\n", "<think>\n", "\n</think>\n\n", "\n\n", ""],
        ),
        ("opening", "<s><|user|>hi<|reply|>", ["<think>\n", "<think>\n", "\n</think>\n\n", "\n\n", ""]),
        (
            "channels",
            "<|start|>user<|message|>hi<|end|><|start|>assistant",
            [
                "<|channel|>analysis<|message|>",
                f"<|end|>{CHANNEL}analysis<|message|>",
                f"<|end|>{CHANNEL}final<|message|>",
                f"{CHANNEL}final<|message|>",
                "<|channel|>final<|message|>",
            ],
        ),
        ("brackets", "<s>[INST]hi[/INST]", ["[THINK]", "[THINK]", "[/THINK]", "", ""]),
        ("plain", "user: hi\nassistant: ", ["<reasoning>", "<reasoning>", "</reasoning>", "", ""]),
    ],
)
def test_the_markers_of_a_family_are_read_with_the_text_that_belongs_to_them(family, prompt, parts):
    assert texts(family) == (prompt, parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_that_are_tokens_are_appended_as_these_tokens(family):
    raw = thinking_tokenizer(family)
    form = tokenizer_of(family).thinking(ASKED, None)
    whole = raw.get_added_vocab().get(form.closer)
    assert whole is None or whole in form.closing.tokens
    assert (whole is None) == (family == "plain")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_begun_reply_is_followed_by_a_block(family):
    prompt, (opening, reopening, *_, header) = texts(family, BEGUN)
    assert prompt.endswith("Step 1:")
    assert opening == reopening
    assert header == ""


@pytest.mark.parametrize("family", ["switched", "plain"])
def test_a_block_that_the_begun_reply_opens_is_not_opened_again(family):
    opener = tokenizer_of(family).thinking(ASKED, None).opener
    begun = [*ASKED, {"role": "assistant", "content": f"Well. {opener}Let me"}]
    prompt, (opening, *_) = texts(family, begun)
    assert prompt.endswith("Well. ")
    assert opening == f"{opener}Let me"


def test_a_string_that_ends_with_the_opening_marker_opens_the_block():
    assert texts("brackets", "2+2? [THINK]")[0] == "2+2? "
    assert texts("brackets", "Say [THINK] and 2+2?")[0] == "Say [THINK] and 2+2?"


def test_markers_of_a_user_do_not_open_a_block():
    asked = [{"role": "user", "content": "what is <think>"}]
    prompt, (opening, *_) = texts("switched", asked)
    assert prompt == "<|turn|>user\nwhat is <think><|stop|>\n<|turn|>assistant\n"
    assert opening == "<think>\n"


def test_named_markers_come_before_those_of_the_template():
    assert texts("switched", markers=("<a>\n", "\n</a>", "!"))[1] == ["<a>\n", "<a>\n", "\n</a>!", "!", ""]


def test_without_markers_the_error_says_what_was_looked_for_and_how_to_name_them():
    raw = byte_tokenizer()
    with pytest.raises(ConfigError) as refused:
        PathTokenizer(raw, len(raw), 500).thinking("hi", None)
    said = str(refused.value)
    assert "reasoning_content" in said
    assert "3 added tokens" in said
    assert "name them, such as Thinking(markers=('<think>', '</think>')), or --thinking-markers" in said


def test_a_tokenizer_without_a_template_may_have_markers_among_its_tokens():
    raw = thinking_tokenizer("brackets")
    raw.chat_template = None
    assert PathTokenizer(raw, len(raw), 500).thinking("hi", None).closer == "[/THINK]"


def test_a_template_that_raises_leaves_the_markers_of_the_tokens():
    raw = thinking_tokenizer("brackets")
    raw.chat_template = "{{ raise_exception('never') }}"
    assert PathTokenizer(raw, len(raw), 500).thinking("hi", None).source == "a pair of added tokens"


@pytest.mark.parametrize(
    ("template", "switches"),
    [
        ("{% if enable_thinking %}{% endif %}", {"enable_thinking"}),
        ("{% if thinking is defined and not thinking %}{% endif %}", {"thinking"}),
        ("{{ m.thinking }}{{ m['thinking'] }}<think>{{ thinking_budget }}", set()),
    ],
)
def test_arguments_that_turn_thinking_on_are_read_off_the_template(template, switches):
    raw = byte_tokenizer()
    raw.chat_template = template
    assert set(thinking_switches(PathTokenizer(raw, len(raw), 500).tokenizer, True)) == switches


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("switched", "<|stop|>\n<|turn|>user\nsure?<|stop|>\n<|turn|>assistant\n<think>\n\n</think>\n\n"),
        ("opening", "<|stop|><|user|>sure?<|reply|><think>\n</think>\n\n"),
        ("channels", f"<|end|><|start|>user<|message|>sure?<|end|>{CHANNEL}final<|message|>"),
        ("brackets", "</s>[INST]sure?[/INST]"),
        ("plain", "\nuser: sure?\nassistant: "),
    ],
)
def test_a_question_is_answered_at_once_without_thinking(family, text):
    assert following(tokenizer_of(family).tokenizer, ASKED, SURE).text == text
