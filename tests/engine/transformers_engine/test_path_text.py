"""Texts and chat messages on paths."""

import pytest

from rksc_tot.core.errors import EngineError
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import Account, LabelRequest
from tests.engine.conftest import byte_tokenizer, llama
from tests.engine.requests import ask


async def test_text_at_the_limit_is_the_decoded_text_of_all_drawn_tokens(byte_engine):
    account = Account()
    root = byte_engine.open("é", account)
    (found,) = await byte_engine.generate([ask(root, k=64, max_tokens=5, stop=())], account)
    for completion in found:
        assert completion.text == byte_engine.tokenizer.decode(completion.tokens)
        assert completion.finish == "eos" or len(completion.tokens) == 5
    assert any("�" in completion.text for completion in found)


@pytest.mark.parametrize("keep", [True, False])
async def test_kv_ends_where_the_kept_text_ends(byte_engine, keep):
    account = Account()
    root = byte_engine.open("say", account)
    tokenizer = byte_engine.tokenizer
    common = [tokenizer.decode([t]) for t in range(40, 60)]
    (found,) = await byte_engine.generate([ask(root, k=64, max_tokens=12, stop=tuple(common), keep_stop=keep)], account)
    stopped = [c for c in found if c.finish == "stop"]
    assert stopped
    for completion in stopped:
        kept = tokenizer.decode(completion.tokens)
        stop = kept.removeprefix(completion.text)
        assert stop in (common if keep else [""])
        assert stop == completion.ending
        assert completion.handle.tokens == root.tokens + list(completion.tokens)


async def test_chat_messages_are_closed_and_followed_by_the_question(byte_engine):
    account = Account()
    root = byte_engine.open([{"role": "user", "content": "hi"}], account)
    tokenizer = byte_engine.tokenizer
    assert tokenizer.decode(root.tokens) == "<s>[user]hi\n[assistant]"
    assert root.tokens.count(tokenizer.bos_token_id) == 1
    seen = []
    walk = byte_engine.cache.walk
    byte_engine.cache.walk = lambda at, tokens: seen.append(list(tokens)) or walk(at, tokens)
    question = [{"role": "user", "content": "sure?"}]
    await byte_engine.label([LabelRequest(root, question, ("yes", "no"))], account)
    assert tokenizer.decode(seen[-1]) == "\n[user]sure?\n[assistant]"


def test_chat_without_a_template_is_refused_with_a_way_out():
    tokenizer = byte_tokenizer(chat=False)
    with (
        TransformersEngine(llama(len(tokenizer)), tokenizer) as engine,
        pytest.raises(EngineError, match="no chat template - return a string"),
    ):
        engine.open([{"role": "user", "content": "hi"}], Account())


async def test_an_empty_prompt_or_question_is_refused(byte_engine):
    with pytest.raises(EngineError, match="prompt is empty"):
        byte_engine.open("", Account())
    root = byte_engine.open("a", Account())
    with pytest.raises(EngineError, match="question is empty"):
        await byte_engine.label([LabelRequest(root, "", ("yes", "no"))], Account())


async def test_the_name_of_a_control_token_on_a_path_is_text(byte_engine):
    account, tokenizer = Account(), byte_engine.tokenizer
    root = byte_engine.open("say <s></s>", account)
    path = byte_engine.extend(root, "<pad>\n")
    assert tokenizer.decode(path.tokens) == "say <s></s><pad>\n"
    (found,) = await byte_engine.generate([ask(path, k=64, max_tokens=30, stop=("<pad>",))], account)
    ended = [completion for completion in found if completion.finish == "eos"]
    assert ended
    for completion in ended:  # closed by the stop string
        drawn, closing = completion.tokens[:-5], completion.tokens[-5:]
        assert (tokenizer.decode(drawn), tokenizer.decode(closing)) == (completion.text, "<pad>")
        assert completion.ending == "<pad>"
    assert not set(path.tokens) & set(tokenizer.all_special_ids)
