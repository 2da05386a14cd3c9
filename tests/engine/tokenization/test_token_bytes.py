"""The bytes of tokens: a text is the bytes of its tokens, or the tokenizer is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rksc_tot.core.errors import ConstraintError
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.engine.tokenization.token_bytes import token_bytes
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import byte_tokenizer
from tests.engine.tokenization.test_written import byte_fallback, byte_level

TOKENIZERS = {
    "merges": byte_tokenizer(),
    "byte level": byte_level(),
    "byte fallback": byte_fallback(),
    "words": build_tokenizer(),
}
BYTES = {name: token_bytes(TextTokenizer(raw), len(raw) + 3) for name, raw in TOKENIZERS.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_the_text_of_tokens_is_that_of_their_bytes(name, data):
    raw = TOKENIZERS[name]
    anchor = raw.encode("a", add_special_tokens=False)
    tokens = data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=8))
    whole = b"".join(BYTES[name][token] for token in tokens)
    try:
        text = whole.decode()
    except UnicodeDecodeError:
        return
    assert raw.decode([*anchor, *tokens], clean_up_tokenization_spaces=False) == raw.decode(anchor) + text


def test_ids_without_a_token_have_no_bytes():
    for name, raw in TOKENIZERS.items():
        assert BYTES[name][len(raw) :] == [b""] * 3


def test_a_tokenizer_whose_texts_depend_on_their_neighbours_is_refused():
    vocab = {"a": 0, "b": 1, "c": 2, "</w>": 3, "a</w>": 4}
    core = Tokenizer(models.WordPiece(vocab=vocab, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.CTC()  # drops a token that equals the one before
    with pytest.raises(ConstraintError, match="depends on its neighbours"):
        token_bytes(TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=core)), len(vocab))
