"""The token paths of labels, and their probabilities."""

import math

import pytest
import torch

from rksc_tot.core.errors import ConfigError, EngineError
from rksc_tot.engine.tokenization.label_trie import LabelTrie, Pieces, label_trie
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.tasks.game24.tokenizer import LABELS, build_tokenizer
from tests.engine.conftest import byte_tokenizer


def trie_of(question, labels, tokenizer=None):
    tokenizer = tokenizer or byte_tokenizer()
    pieces = Pieces(tokenizer, len(tokenizer))
    return label_trie(TextTokenizer(tokenizer).continuation, question, labels, pieces, tokenizer.unk_token_id)


def texts(trie, tokenizer=None):
    tokenizer = tokenizer or byte_tokenizer()
    return [[tokenizer.decode(path) for path in paths] for paths in trie.spellings]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("so", [[" yes"], [" no"]]),
        ("so 1", [[" yes"], [" no"]]),
        ("so\n", [["yes"], ["no"]]),
        ("so?", [["yes", " yes"], ["no", " no"]]),
        ('"', [["yes", " yes"], ["no", " no"]]),
        ("吗", [["yes", " yes"], ["no", " no"]]),
    ],
)
def test_the_end_of_the_question_decides_on_a_space_before_a_label(question, expected):
    trie = trie_of(question, ("yes", "no"))
    assert texts(trie) == expected
    assert trie.question == byte_tokenizer().encode(question)
    assert not trie.covers


def test_a_label_is_read_letter_by_letter_as_it_is_given():
    assert texts(trie_of("so ok", ("Yes", "nO"))) == [[" Yes"], [" nO"]]
    assert texts(trie_of("so ok", (" Yes", "nO "))) == [[" Yes"], [" nO "]]


def test_the_trie_begins_before_characters_that_merge_with_a_label():
    tokenizer = byte_tokenizer()
    trie = trie_of("so: ", ("yes", "no", "x"))
    assert tokenizer.decode(trie.question) == "so:"
    assert texts(trie) == [[" yes"], [" no"], [" x"]]
    space, yes, no = tokenizer.convert_tokens_to_ids(["Ġ", "Ġyes", "Ġno"])
    assert {node: set(tokens) for node, tokens in trie.covers.items()} == {(): {space, yes, no}}
    assert not trie.flat
    assert trie_of("so:", ("yes", "no")).flat


def test_a_question_that_is_all_merged_has_no_tokens_of_its_own():
    trie = trie_of(" ", ("yes", "no"))
    assert trie.question == []
    with pytest.raises(ConfigError, match="the whole question merges with the labels"):
        trie.check_layers()


def test_the_embedded_model_spells_each_label_with_one_token():
    tokenizer = build_tokenizer()
    trie = trie_of("try 1+2 so", LABELS, tokenizer)
    assert trie.flat
    assert trie.first == tuple((tokenizer.convert_tokens_to_ids(f" {label}"),) for label in LABELS)


@pytest.mark.parametrize("labels", [("yes",), ("yes", "yes"), ("yes", " "), ("yes", "yes ")])
def test_labels_must_be_two_different_words(labels):
    with pytest.raises(EngineError, match="two or more different words"):
        trie_of("so", labels)


def test_labels_that_are_the_same_tokens_are_refused_by_name():
    lower = lambda text: byte_tokenizer().encode(text.lower())  # noqa: E731
    with pytest.raises(EngineError, match="the labels 'Yes' and 'yes' are the same tokens"):
        label_trie(lower, "so", ("Yes", "yes"), Pieces(byte_tokenizer(), 200))


def test_a_label_that_the_tokenizer_cannot_encode_is_refused_by_name():
    with pytest.raises(EngineError, match="cannot encode the label 'perhaps,'"):
        trie_of("try so", ("sure", "perhaps,"), build_tokenizer())


def test_labels_that_begin_with_the_same_token_are_not_read_between_layers():
    trie_of("so", ("yes", "no")).check_layers()
    with pytest.raises(ConfigError, match="'quite' and 'quiet' begin with the same token"):
        trie_of("so\n", ("quite", "quiet")).check_layers()


def uniform(vocabulary):
    return lambda node, tokens: torch.full((len(tokens),), -math.log(vocabulary), dtype=torch.double)


def test_the_probability_of_a_label_is_that_of_its_whole_text():
    trie = LabelTrie(("a", "bc"), [0], (((1,),), ((2, 3),)), {})
    assert trie.nodes == [(), (2,)]
    found, outside = trie.read(uniform(10))
    assert found == pytest.approx([0.1, 0.01])
    assert outside == pytest.approx(0.89)


def test_spellings_of_a_label_add_up():
    found, _ = LabelTrie(("a", "b"), [0], (((1,), (2,), (3, 1)), ((4,),)), {}).read(uniform(10))
    assert found == pytest.approx([0.21, 0.1])


def test_a_label_does_not_include_texts_of_a_longer_label():
    trie = LabelTrie(("good", "good enough", "good enough too"), [0], (((1,),), ((1, 2),), ((1, 2, 3),)), {})
    found, outside = trie.read(uniform(10))
    assert found == pytest.approx([0.1 - 0.01, 0.01 - 0.001, 0.001])
    assert sum(found) + outside == pytest.approx(1)


def test_probabilities_are_conditional_on_the_merged_end_of_a_question():
    trie = LabelTrie(("a", "b"), [0], (((1,),), ((2,),)), {(): [1, 2, 3, 4]})
    found, outside = trie.read(uniform(10))
    assert found == pytest.approx([0.25, 0.25])
    assert outside == pytest.approx(0.5)
