"""The votes of a model, against plain passes over whole ballots."""

import json

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from benchmarks.common.plain_labels import plain_labels
from rksc_tot.core.task import Thought, function_task
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.search import Search
from rksc_tot.verifiers import LMVote
from tests.engine.conftest import byte_tokenizer, llama


def tokenizer_with_numbers():
    """A tokenizer that merges the space before a number with it, so that a ballot ends inside a token."""
    state = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    for digit in "123456789":
        state["model"]["merges"].append(["Ġ", digit])
        state["model"]["vocab"][f"Ġ{digit}"] = len(state["model"]["vocab"])
    core = Tokenizer.from_str(json.dumps(state))
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", pad_token="<pad>", eos_token="</s>")


@pytest.mark.parametrize("make", [byte_tokenizer, tokenizer_with_numbers])
async def test_the_votes_of_a_ballot_are_read_after_its_whole_text(make):
    tokenizer = make()
    with TransformersEngine(llama(len(tokenizer)), tokenizer) as engine:
        texts = iter(["try 3", "</s> 2: me", "no"])
        task = function_task(
            prompt=lambda problem: "say yes",
            is_solution=lambda problem, path: False,
            parse=lambda problem, path, text: Thought(next(texts)),
            accept_truncated=True,
            max_thought_tokens=3,
        )
        search = Search(task, "p", engine, LMVote())
        level = await search.expand([search.root], 3)
        asked = []
        label = engine.label
        engine.label = lambda requests, account: asked.extend(requests) or label(requests, account)
        await search.score(level)
        [ballot] = asked
        assert "1: try 3\n2: </s> 2: me\n3: no\n" in ballot.question
        encode = TextTokenizer(tokenizer).continuation
        shares, outside = plain_labels(
            lambda ids: engine.forward.plain(list(ids)).double().log_softmax(-1), tokenizer, ballot.handle.tokens,
            ballot.question, ("1", "2", "3"), encode,
        )  # fmt: skip
        assert [node.score for node in level] == pytest.approx(shares, abs=1e-4)
        assert level[0].labels["outside"] == pytest.approx(outside, abs=1e-4)
