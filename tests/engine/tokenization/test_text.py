"""Text to tokens and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from rksc_tot.core.errors import EngineError
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.tasks.game24.tokenizer import build_tokenizer
from tests.engine.conftest import byte_tokenizer

TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=40)


@pytest.mark.parametrize("make", [byte_tokenizer, build_tokenizer])
def test_a_continuation_decodes_to_its_text(make):
    tokenizer = TextTokenizer(make())
    for text in (" 4 5\n", "10 - 4 = 6 (left: 5 6 6)\n"):
        assert tokenizer.decode(tokenizer.continuation(text)) == text


def test_a_continuation_gets_no_space_where_line_ends_merge():
    """A tokenizer that puts a space before every text and has a token of two line ends."""
    letters = {letter: n for n, letter in enumerate(["<unk>", "▁", "a", "b", "P", "\n", "\n\n"])}
    core = Tokenizer(models.BPE(vocab=letters, merges=[("\n", "\n")], unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"))
    before = tokenizer.encode("ab")
    for text in ("\nP", "\n\nP", "P"):
        assert tokenizer.decode([*before, *tokenizer.continuation(text)]) == "ab" + text


@given(st.lists(TEXT, min_size=1, max_size=4))
def test_a_continuation_does_not_change_text_before_it(pieces):
    tokenizer = TextTokenizer(byte_tokenizer())
    ids = []
    for piece in pieces:
        more = tokenizer.continuation(piece)
        assert tokenizer.decode(ids + more).startswith(tokenizer.decode(ids).rstrip("�"))
        ids += more
    assert tokenizer.decode(ids) == "".join(pieces)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(EngineError, match="is not a character"):
        TextTokenizer(byte_tokenizer()).continuation("a\ud800")
