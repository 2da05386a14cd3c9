"""Thoughts that end by a rule: the text and the path are those of the whole text, cut by the rule, in both engines."""

import pytest

from rksc_tot.core.task.boundary import Boundary
from rksc_tot.engine.base import Account, Sampling
from rksc_tot.engine.mock.engine import MockEngine
from tests.engine.requests import ask

GREEDY = Sampling(temperature=0)
TEXT = "1. Add.\nIt is 15. So\n2. Double it.\n```\nx\n```\n3. End"
NAMES = ("lines:2", "numbered", "sentences:2", "fences")


@pytest.mark.parametrize("name", NAMES)
async def test_a_rule_ends_a_thought_after_what_it_keeps(name):
    rule, engine, account = Boundary.of(name).rule, MockEngine(lambda text, rng: TEXT[len(text) - 1 :]), Account()
    start, end = rule.find(TEXT)
    root = engine.open("p", account)
    [[done]] = await engine.generate([ask(root, k=1, max_tokens=99, stop=(), rule=rule)], account)
    assert (done.text, done.finish, "".join(map(chr, done.tokens))) == (TEXT[:start], "stop", TEXT[:end])
    assert done.ending == TEXT[start:end]
    [[rest]] = await engine.generate([ask(done.handle, k=1, max_tokens=99, stop=())], account)
    assert TEXT[:end] + rest.text == TEXT


@pytest.mark.parametrize("name", NAMES)
async def test_a_rule_that_reads_on_leaves_no_token_behind(name, byte_engine, monkeypatch):
    """The model's draws are replaced by the text, so that the rule has something to find."""
    from rksc_tot.engine.jobs.generation.branches import BranchingJob

    rule, account = Boundary.of(name).rule, Account()
    ids = byte_engine.tokenizer.encode(TEXT + "\n" * 9)
    divide = BranchingJob._divide

    def write(self, group, drawn, logits, row):
        [(_, logprob)] = [next(drawn)]
        divide(self, group, iter([(ids[len(group.logprobs)], logprob)]), logits, row)

    monkeypatch.setattr(BranchingJob, "_divide", write)
    root = byte_engine.open("p", account)
    [[done]] = await byte_engine.generate([ask(root, k=1, max_tokens=99, stop=(), rule=rule)], account)
    monkeypatch.undo()
    start, end = rule.find(TEXT)
    assert (done.text, done.ending, done.finish) == (TEXT[:start], TEXT[start:end], "stop")
    assert byte_engine.tokenizer.decode(done.tokens) == TEXT[:end]
    plain = byte_engine.extend(root, TEXT[:end])
    asked = [ask(handle, k=1, max_tokens=5, stop=(), sampling=GREEDY) for handle in (done.handle, plain)]
    [one], [other] = await byte_engine.generate(asked, account)
    assert one.tokens == other.tokens
    for handle in (root, done.handle, plain, one.handle, other.handle):
        byte_engine.release(handle)


async def test_the_end_of_the_text_is_closed_by_what_stands_between_thoughts():
    account, engine = Account(), MockEngine(lambda text, rng: "only one")
    root = engine.open("p", account)
    for name, closed in (("numbered", "only one\n"), ("paragraphs:2", "only one\n\n"), ("sentences", "only one")):
        [[done]] = await engine.generate([ask(root, k=1, stop=(), rule=Boundary.of(name).rule)], account)
        assert (done.finish, "".join(map(chr, done.tokens))) == ("eos", closed)
        assert done.text + done.ending == closed
