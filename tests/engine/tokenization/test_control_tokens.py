"""Names of control tokens in text stay text; only templates make control tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from rksc_tot.engine.tokenization.chat_template import following_tokens, prompt_tokens
from rksc_tot.engine.tokenization.path_tokens import PathTokenizer
from rksc_tot.engine.tokenization.text import TextTokenizer
from tests.engine.conftest import byte_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<s>{{ m.role }}: {{ m.content | trim }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def spaces_in_front():
    """A tokenizer like SentencePiece, which puts a space before every text, and BOS before that."""
    names = ["<unk>", "<s>", "</s>", "<pad>"]
    vocab = {name: n for n, name in enumerate(names)}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    vocab |= {letter: len(vocab) + n for n, letter in enumerate("▁abps/<>:")}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


TOKENIZERS = {"bytes": byte_tokenizer(), "spaces in front": spaces_in_front()}
for each in TOKENIZERS.values():
    each.chat_template = TEMPLATE
each_kind = pytest.mark.parametrize("kind", TOKENIZERS)
PARTS = st.sampled_from(["<s>", "</s>", "<pad>", "<", "s>", "<<s", "/s>", "a", " ", "\n", "b:", "\ue000", "\ue001"])
TEXT = st.lists(PARTS, max_size=6).map("".join)


def control_tokens(tokenizer, ids):
    """The control tokens in order, without the unknown token."""
    return [token for token in ids if token in tokenizer.all_special_ids and token != tokenizer.unk_token_id]


def shown(kind, text):
    """A text without spaces, where the tokenizer puts one behind each control token."""
    return text if kind == "bytes" else text.replace(" ", "")


def chat(content, role="user"):
    return [{"role": role, "content": content}]


@each_kind
@given(before=TEXT, text=TEXT)
def test_no_text_becomes_a_control_token(kind, before, text):
    tokenizer = TextTokenizer(TOKENIZERS[kind])
    for ids in (tokenizer.encode(text), tokenizer.continuation(text)):
        assert not control_tokens(tokenizer.raw, ids)
    ids = [*tokenizer.encode(before), *tokenizer.continuation(text)]
    assert tokenizer.decode(ids) == before + text


@each_kind
@given(text=TEXT)
def test_a_plain_prompt_is_text_after_bos(kind, text):
    tokenizer = TextTokenizer(TOKENIZERS[kind])
    if not text:
        return
    bos = tokenizer.raw.encode("")
    ids = prompt_tokens(tokenizer, text)
    assert ids[: len(bos)] == bos
    assert not control_tokens(tokenizer.raw, ids[len(bos) :])
    assert tokenizer.decode(ids[len(bos) :]) == text


@each_kind
@given(text=TEXT)
def test_text_without_control_names_is_tokenised_unchanged(kind, text):
    tokenizer, raw = TextTokenizer(TOKENIZERS[kind]), TOKENIZERS[kind]
    if any(name in text for name in raw.all_special_tokens):
        return
    assert tokenizer.encode(text) == raw.encode(text, add_special_tokens=False)
    assert prompt_tokens(tokenizer, text or "a") == raw.encode(text or "a")
    assert prompt_tokens(tokenizer, chat(text)) == raw.apply_chat_template(
        chat(text), add_generation_prompt=True, return_dict=False
    )


@each_kind
@given(content=TEXT, begun=TEXT, asked=TEXT)
def test_only_the_template_makes_control_tokens(kind, content, begun, asked):
    tokenizer, raw = TextTokenizer(TOKENIZERS[kind]), TOKENIZERS[kind]
    empty = [*chat("a"), *chat("b", "assistant")]
    messages = [*chat(content), *chat(begun, "assistant")]
    ids, expected = prompt_tokens(tokenizer, messages), prompt_tokens(tokenizer, empty)
    assert control_tokens(raw, ids) == control_tokens(raw, expected)
    rendered = raw.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert shown(kind, raw.decode(ids)) == shown(kind, rendered)
    ids, expected = following_tokens(tokenizer, messages, chat(asked)), following_tokens(tokenizer, empty, chat("a"))
    assert control_tokens(raw, ids) == control_tokens(raw, expected)
    rendered = f"</s>\n<s>user: {asked.strip()}</s>\n<s>assistant: "
    assert shown(kind, raw.decode(ids)) == shown(kind, rendered)


@each_kind
@pytest.mark.parametrize("question", [": ", chat("</s>?")], ids=["text", "chat"])
def test_labels_are_text(kind, question):
    raw = TOKENIZERS[kind]
    asked = following_tokens(TextTokenizer(raw), chat("a"), question)
    trie = PathTokenizer(raw, len(raw), 10_000).labels(chat("a"), question, ("</s>", "<s>b"), 0)
    assert control_tokens(raw, trie.question) == control_tokens(raw, asked)
    assert not any(control_tokens(raw, path) for paths in trie.spellings for path in paths)
    texts = [{raw.decode([*trie.question, *path]) for path in paths} for paths in trie.spellings]
    assert texts[0] & {raw.decode(asked) + "</s>"}
    assert texts[1] & {raw.decode(asked) + "<s>b"}
