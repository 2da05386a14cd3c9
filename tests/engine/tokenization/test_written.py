"""The text of a branch, token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.written import CONTEXT, ByteFallback, ByteLevel, DecodedText, written
from tests.engine.conftest import byte_tokenizer

TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=40)


def byte_level():
    """Bytes, and tokens that begin or end inside a character: "a" and half of "€", the other half and "b"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: n for n, letter in enumerate(alphabet)}
    for left, right in [("â", "Ĥ"), ("a", "âĤ"), ("¬", "b"), ("Ã", "¤"), ("¤", "Ã")]:
        vocab[left + right] = len(vocab)
    core = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")
    tokenizer.add_tokens(["two  spaces", "é"])
    return tokenizer


def byte_fallback():
    """A tokenizer like SentencePiece: words, U+FFFD as a token, and single bytes; the first space of a text is dropped."""
    words = ["▁a", "b", "▁", "�", "é", "▁€"]
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {word: len(vocab) + n for n, word in enumerate(words)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>")


def word_pieces():
    """A tokenizer whose bytes are not known."""
    vocab = {"a": 0, "##b": 1, "�": 2, "##�": 3, "c": 4}
    core = Tokenizer(models.WordPiece(vocab=vocab, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=core)


TOKENIZERS = {"bytes": byte_level(), "bytes in between": byte_fallback(), "bytes unknown": word_pieces()}
KINDS = {"bytes": ByteLevel, "bytes in between": ByteFallback, "bytes unknown": DecodedText}
each_kind = pytest.mark.parametrize("kind", TOKENIZERS)
TEXT = st.text(alphabet="aé€�😀 b", max_size=3)


@st.composite
def token_ids(draw, kind):
    """Random tokens, and parts of the tokens of random texts: characters, and broken ones."""
    tokenizer, ids = TOKENIZERS[kind], []
    for _ in range(draw(st.integers(0, 8))):
        some = tokenizer.encode(draw(TEXT)) if draw(st.booleans()) else [draw(st.integers(0, len(tokenizer) - 1))]
        ids += some[draw(st.integers(0, 1)) : draw(st.integers(1, 8))]
    return ids


def push(kind, ids, before=()):
    branch = written(TextTokenizer(TOKENIZERS[kind]), before)
    for token in ids:
        branch.push(token)
    return branch


def text_of(kind, ids):
    return TOKENIZERS[kind].decode(ids, clean_up_tokenization_spaces=False)


@each_kind
@given(data=st.data())
def test_the_text_of_a_branch_is_its_decoded_tokens(kind, data):
    ids = data.draw(token_ids(kind))
    branch = push(kind, ids)
    assert type(branch) is KINDS[kind]
    assert branch.whole == text_of(kind, ids)
    assert branch.tokens == ids
    assert len(branch.ends) == len(ids)


@pytest.mark.parametrize("kind", ["bytes", "bytes in between"])
@given(data=st.data())
def test_tokens_up_to_an_end_decode_to_the_text_up_to_there(kind, data):
    ids = data.draw(token_ids(kind))
    branch = push(kind, ids)
    for count, end in enumerate(branch.ends, 1):
        if end is not None:
            assert text_of(kind, ids[:count]) == branch.text[:end]


@pytest.mark.parametrize(("kind", "low", "high"), [("bytes", "Ģ", "¿"), ("bytes in between", "<0x80>", "<0xBF>")])
@given(data=st.data())
def test_text_is_held_back_only_while_a_character_may_be_completed(kind, low, high, data):
    ids = data.draw(token_ids(kind))
    branch = push(kind, ids)
    if branch.text != branch.whole:
        endings = [TOKENIZERS[kind].convert_tokens_to_ids([byte] * n) for byte in (low, high) for n in (1, 2, 3)]
        texts = [text_of(kind, [*ids, *ending]) for ending in endings]
        assert any(text[:-1] == branch.text and text[-1] != "�" for text in texts)


@each_kind
@given(data=st.data())
def test_text_up_to_the_result_of_push_does_not_change(kind, data):
    branch = written(TextTokenizer(TOKENIZERS[kind]), ())
    for token in data.draw(token_ids(kind)):
        before = branch.text
        assert branch.text[: (same := branch.push(token))] == before[:same]


@each_kind
def test_a_sampled_replacement_character_is_text(kind):
    ids = TOKENIZERS[kind].encode("a �")
    branch = push(kind, ids)
    assert branch.whole == text_of(kind, ids) == "a �"
    assert branch.text == ("a" if kind == "bytes unknown" else "a �")


def test_a_character_of_several_tokens_ends_with_the_last_one():
    ids = TOKENIZERS["bytes"].convert_tokens_to_ids(["aâĤ", "¬b", "â", "Ĥ", "a"])
    branch = written(TextTokenizer(TOKENIZERS["bytes"]), ())
    assert [(branch.push(token), branch.text) for token in ids] == [
        (0, "a"), (1, "a€b"), (3, "a€b"), (3, "a€b"), (3, "a€b�a"),
    ]  # fmt: skip
    assert branch.ends == [None, 3, None, 4, 5]


def test_a_byte_can_make_earlier_characters_of_its_run_invalid():
    ids = TOKENIZERS["bytes in between"].convert_tokens_to_ids(["b", "<0xC3>", "<0xA9>", "<0xFF>", "b"])
    branch = written(TextTokenizer(TOKENIZERS["bytes in between"]), ())
    assert [(branch.push(token), branch.text) for token in ids] == [
        (0, "b"), (1, "b"), (1, "bé"), (1, "b���"), (1, "b���b"),
    ]  # fmt: skip
    assert branch.ends == [1, None, None, 4, 5]


@pytest.mark.parametrize("before", ["犇犇", "b犇犇", "a犇", "犇犇犇犇犇犇"])
def test_characters_before_a_branch_do_not_spoil_its_own(before):
    """Each has three bytes, and the context that a branch is given may begin inside one."""
    kind = "bytes in between"
    prompt, ids = (TOKENIZERS[kind].encode(text, add_special_tokens=False) for text in (before, "犇 a犇"))
    branch = push(kind, ids, prompt[-CONTEXT:])
    assert (branch.text, branch.whole) == ("犇 a犇", "犇 a犇")
    assert [end for end in branch.ends if end is not None] == [1, 2, 3, 4]


def test_a_fork_does_not_write_into_the_other():
    ids = byte_tokenizer().encode("ab")
    branch = written(TextTokenizer(byte_tokenizer()), [])
    branch.push(ids[0])
    other = branch.fork()
    other.push(ids[1])
    assert (branch.text, branch.ends, other.text, other.ends) == ("a", [1], "ab", [1, 2])
