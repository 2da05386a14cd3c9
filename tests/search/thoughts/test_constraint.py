"""Searches whose thoughts have a form: what becomes a node, and what a task may set."""

import re

import pytest

from rksc_tot import ConstraintError, TaskError, check_task, json_schema, regex, solve
from rksc_tot.engine import TransformersEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood
from tests.engine.conftest import byte_tokenizer, llama
from tests.unchecked_task import unchecked_task

STEP = regex("(yes|no){1,3}!")


@pytest.fixture(scope="module")
def engine():
    tokenizer = byte_tokenizer()
    with TransformersEngine(llama(len(tokenizer)), tokenizer, name="bytes", pack=True) as engine:
        yield engine


def make_task(constraint=STEP, **options):
    options = {
        "max_thought_tokens": 24,
        "max_thoughts": 2,
        "is_solution": lambda problem, path: len(path) == 2,
    } | options
    return unchecked_task(prompt=lambda problem: f"{problem}: ", constraint=constraint, **options)


def make_search(engine, task, **options):
    return Search(task, "say", engine, Likelihood(), **options)


async def test_every_node_has_the_form_and_both_kinds_of_log_probabilities(engine):
    search = make_search(engine, make_task())
    level = await search.expand([search.root], 6)
    children = await search.expand(level, 2)
    for node in [*level, *children]:
        assert re.fullmatch(STEP.source, node.text)
        assert len(node.constrained_logprobs) == len(node.logprobs) == len(node.tokens)
        assert all(own <= inside + 1e-6 for own, inside in zip(node.logprobs, node.constrained_logprobs, strict=True))
        assert node.likelihood == pytest.approx(sum(node.logprobs) / len(node.logprobs))
    assert search.ledger.rejected == 0
    assert 0 < search.ledger.constrained_tokens == search.ledger.tokens_sampled
    search.close()


async def test_a_tree_is_the_same_beside_another_search(engine):
    def tree(result):
        return [node.model_dump(exclude={"layer"}) for node in result.tree]

    import asyncio

    from rksc_tot import asolve

    other = make_task(constraint=None, accept_truncated=True)
    alone = [await asolve(task, "say", engine=engine, verifier="likelihood", seed=3) for task in (make_task(), other)]
    engine.clear()
    together = await asyncio.gather(
        *(asolve(task, "say", engine=engine, verifier="likelihood", seed=3) for task in (make_task(), other))
    )
    assert [tree(result) for result in together] == [tree(result) for result in alone]


async def test_a_form_may_depend_on_the_path(engine):
    class Alternating(type(make_task())):
        max_thought_tokens = 8
        max_thoughts = 3

        def prompt(self, problem):
            return f"{problem}: "

        def is_solution(self, problem, path):
            return len(path) == 3

        def constraint(self, problem, path):
            return regex("no!") if path and path[-1].text == "yes!" else regex("yes!")

    result = solve(Alternating(), "say", engine=engine, verifier="likelihood")
    assert result.path == ["yes!", "no!", "yes!"]


async def test_a_thought_that_is_cut_off_is_rejected_even_if_truncated_thoughts_are_accepted(engine):
    task = make_task(json_schema({"type": "string"}), max_thought_tokens=3, accept_truncated=True)
    search = make_search(engine, task)
    nodes = await search.expand([search.root], 8)
    assert all(re.fullmatch('".*"', node.text) for node in nodes)
    assert any("before it satisfied its constraint" in reason for reason in search.rejections)
    search.close()


async def test_a_form_that_does_not_fit_the_limit_ends_the_search_before_the_first_thought(engine):
    task = make_task(json_schema({"type": "string", "minLength": 60}), max_thought_tokens=12)
    with pytest.raises(ConstraintError, match=r"the shortest text found .* the limit is 12 - raise max_thought_tokens"):
        solve(task, "say", engine=engine, verifier="likelihood")
    [finding] = [f for f in check_task(task, "say", engine) if f.what == "sample"]
    assert "the shortest text found" in finding.message


async def test_a_form_of_a_deeper_node_that_is_refused_rejects_only_its_thoughts(engine):
    task = make_task(lambda problem, path: regex("(") if path and path[-1].text == "yes!" else STEP)
    search = make_search(engine, task)
    level = await search.expand([search.root], 24)
    children = await search.expand(level, 1)
    refused = [node for node in level if node.text == "yes!"]
    assert refused
    assert {node.parent for node in children} == {node.id for node in level} - {node.id for node in refused}
    assert any("unclosed group" in reason for reason in search.rejections)
    search.close()


@pytest.mark.parametrize(
    ("constraint", "wrong"),
    [
        ("a+", "not what json_schema, regex or grammar return"),
        (lambda problem, path: "a+", "constraint returned 'a.' ?, not a Constraint"),
        (lambda problem, path: 1 // 0, "constraint raised ZeroDivisionError"),
    ],
)
def test_a_constraint_of_another_kind_is_an_error_of_the_task(engine, constraint, wrong):
    with pytest.raises(TaskError, match=wrong):
        solve(make_task(constraint), "say", engine=engine, verifier="likelihood")


async def test_the_reply_of_a_proposal_has_the_form(engine):
    replies = []

    def split(problem, path, reply):
        replies.append(reply)
        return reply.split("!")[:-1]

    task = make_task(regex("((yes|no)!){2}"), mode="propose", split=split)
    search = make_search(engine, task)
    nodes = await search.expand([search.root], 2)
    assert re.fullmatch("((yes|no)!){2}", replies[0])
    assert {node.text for node in nodes} <= {"yes", "no"}
    search.close()
