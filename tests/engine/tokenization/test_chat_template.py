"""Chat messages through templates of several kinds."""

import pytest

from rksc_tot.core.errors import EngineError
from rksc_tot.engine.tokenization.chat_template import following_tokens, prompt_tokens
from rksc_tot.engine.tokenization.text import TextTokenizer
from tests.engine.conftest import byte_tokenizer

PLAIN = byte_tokenizer().chat_template
ASSISTANT = "[assistant]"
TEMPLATES = {
    "as it is": PLAIN,
    "trimmed": PLAIN.replace("m.content", "m.content | trim"),
    "alternating": "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + PLAIN,
}
ASKED = [{"role": "user", "content": "hi"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "Step 1:"}]
SURE = [{"role": "user", "content": "sure?"}]


def tokenizer_with(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return TextTokenizer(tokenizer)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("begun", ["Step 1:", "Step 1: ", "\nStep", "", "a [assistant] b"])
def test_the_assistants_last_message_is_continued_as_the_template_writes_it(name, begun):
    tokenizer = tokenizer_with(TEMPLATES[name])
    messages = [*ASKED, {"role": "assistant", "content": begun}]
    ids = prompt_tokens(tokenizer, messages)
    assert ids == tokenizer.raw.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert tokenizer.decode(ids).rstrip().endswith(begun.strip() or ASSISTANT)


def test_after_a_message_of_the_user_the_model_begins_a_turn():
    assert byte_tokenizer().decode(prompt_tokens(tokenizer_with(PLAIN), ASKED)) == "<s>[user]hi\n[assistant]"


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [ASKED, BEGUN], ids=["asked", "begun"])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (SURE, "\n[user]sure?\n[assistant]"),
        ([*SURE, {"role": "assistant", "content": "I am"}], "\n[user]sure?\n[assistant]I am"),
        (" sure?", " sure?"),
    ],
    ids=["question", "question with a begun answer", "text"],
)
def test_a_question_follows_the_closed_turn_of_the_assistant(name, prompt, words, text):
    tokenizer = tokenizer_with(TEMPLATES[name])
    assert tokenizer.decode(following_tokens(tokenizer, prompt, words)) == text


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
            "the chat template cannot continue the assistant's last message: ValueError: continue_final_message is set but",
        ),
        (
            (
                "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('users only') }}"
                "{% endif %}{{ m.content }}{% endfor %}"
            ),
            "the chat template cannot continue the assistant's last message: TemplateError: users only",
        ),
    ],
)
def test_a_template_that_cannot_continue_a_message_is_named_in_one_sentence(template, says):
    with pytest.raises(EngineError) as refused:
        prompt_tokens(tokenizer_with(template), BEGUN)
    said = str(refused.value)
    assert said.startswith(says)
    assert said.endswith(" - end the messages with a user message")
    assert "\n" not in said
