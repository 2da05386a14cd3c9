"""Where most of the probability is outside the labels, the answer shows what the model would write instead."""

import pytest

from rksc_tot import load_engine
from rksc_tot.engine.base import Account, LabelRequest
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.tasks.game24.prompts import QUESTION


@pytest.mark.parametrize("question", [" ok:", " so? "])
async def test_the_likeliest_tokens_are_those_of_a_plain_pass(byte_engine, question):
    account = Account()
    root = byte_engine.open("say yes no", account)
    [reply] = await byte_engine.label([LabelRequest(root, question, ("yes", "no"))], account)
    assert reply.outside > 0.5
    text = TextTokenizer(byte_engine.tokenizer)
    ids = [*root.tokens, *text.continuation(question.rstrip(" "))]
    plain = byte_engine.forward.plain(ids)[-1].double().softmax(-1)
    if question.endswith(" "):  # the space is part of the token that follows
        spaced = [text.decode([n]).startswith(" ") for n in range(len(plain))]
        plain = plain * plain.new_tensor(spaced)
        plain = plain / plain.sum()
    best = plain.topk(3)
    assert [found for found, _ in reply.likeliest] == [text.decode([n]) for n in best.indices.tolist()]
    assert [p for _, p in reply.likeliest] == pytest.approx(best.values.tolist(), abs=1e-5)
    byte_engine.release(root)


async def test_nothing_is_shown_where_the_labels_have_most_of_the_probability():
    with load_engine() as engine:
        account = Account()
        root = engine.open("solve 4 5 6 10\n", account)
        labels = ("sure", "likely", "impossible")
        [reply] = await engine.label([LabelRequest(root, QUESTION, labels)], account)
        assert (reply.outside < 0.5, reply.likeliest) == (True, ())
