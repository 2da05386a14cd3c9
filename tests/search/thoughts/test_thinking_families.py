"""Thinking blocks on tiny random models whose templates behave like five known families."""

import pytest

from benchmarks.common.thinking_models import FAMILIES, random_llama, thinking_tokenizer
from rksc_tot.core.task import Question, Thinking, Thought, function_task
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.base import GenerateRequest, LabelRequest, Sampling
from rksc_tot.engine.tokenization.text import TextTokenizer
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood

ASKED = [{"role": "user", "content": "hi"}]
BEGUN = [*ASKED, {"role": "assistant", "content": "Step 1:"}]
BUDGET = 7


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    tokenizer = thinking_tokenizer(request.param)
    with TransformersEngine(random_llama(len(tokenizer)), tokenizer, name=request.param) as engine:
        yield engine
        engine.check_integrity()


def search_on(engine, prompt=ASKED, budget=BUDGET, **options):
    task = function_task(
        prompt=lambda problem: prompt,
        is_solution=lambda problem, path: len(path) == 3,
        thinking=Thinking(budget=budget, **options),
        thoughts="tokens:5",
        parse=lambda problem, path, text: Thought(text),
    )
    return Search(task, "p", engine, Likelihood())


async def check_next_token(engine, search, node):
    """Compare the next token after a node with a fresh pass of the plain model over the tokens of its path."""
    request = GenerateRequest(node._handle, (1,), Sampling(temperature=0.0), 1)
    [[completion]] = await engine.generate([request], search.account)
    fresh = engine.forward.plain(node._handle.tokens)[-1].double().log_softmax(-1)
    assert completion.logprobs[0] == pytest.approx(float(fresh.max()), abs=1e-4)
    engine.release(completion.handle)


@pytest.mark.parametrize("prompt", [ASKED, BEGUN], ids=["asked", "begun"])
async def test_a_dropped_block_leaves_the_path_as_if_it_had_never_been_there(family, prompt):
    search = search_on(family, prompt)
    form = family.thinking_format(prompt, None)
    nodes = await search.expand([search.root], 2)
    nodes += await search.expand(nodes, 1)
    assert len(nodes) > 2
    for node in nodes:
        texts = TextTokenizer(family.tokenizer)  # a text with markers has no tokens of the model, but those of its text
        said = [t for n in search.tree.lineage(node)[1:] for t in n.tokens or texts.continuation(n.text)]
        assert node._handle.tokens == [*form.prompt, *form.header.tokens, *said]
        await check_next_token(family, search, node)
    search.close()


@pytest.mark.parametrize("prompt", [ASKED, BEGUN], ids=["asked", "begun"])
async def test_a_kept_block_stays_on_the_path_with_its_markers(family, prompt):
    search = search_on(family, prompt, keep=True)
    form = family.thinking_format(prompt, None)
    [first] = await search.expand([search.root], 1)
    [second] = await search.expand([first], 1)
    path = family.tokenizer.decode(second._handle.tokens)
    begin = family.tokenizer.decode(form.prompt)
    assert path.startswith(
        f"{begin}{form.opening.text}{first.thinking}{form.closing.text if first.forced_close else form.closer}"
    )
    assert path[len(begin) :].count(form.closer) >= 2
    for node in (first, second):
        tokens = node._handle.tokens
        logprobs = family.forward.plain(tokens).double().log_softmax(-1)
        drawn = range(len(tokens) - len(node.tokens), len(tokens))
        fresh = [float(logprobs[at - 1, tokens[at]]) for at in drawn]
        assert node.logprobs == pytest.approx(fresh, abs=1e-4)
        await check_next_token(family, search, node)
    search.close()


async def test_no_block_has_more_tokens_than_its_budget(family):
    for budget in (1, 2, 9):
        search = search_on(family, budget=budget)
        nodes = await search.expand([search.root], 6)
        assert nodes
        assert all(node.thinking_tokens <= budget for node in nodes)
        assert all(node.thinking_tokens == budget for node in nodes if node.forced_close and node.finish != "eos")
        assert search.ledger.forced_closes >= sum(node.forced_close for node in nodes)
        search.close()


async def test_steps_inside_a_block_share_its_budget_and_the_last_thought_closes_it(family):
    search = search_on(family, budget=12, thought="inside", keep=True)
    form = family.thinking_format(ASKED, None)
    [first] = await search.expand([search.root], 1)
    node = first
    while children := await search.expand([node], 1):
        [node] = children
    lineage = search.tree.lineage(node)[1:]
    assert sum(n.thinking_tokens for n in lineage) <= 12
    assert family.tokenizer.decode(node._handle.tokens).count(form.opening.text) == 1
    await check_next_token(family, search, node)
    search.close()


async def test_a_search_with_blocks_is_the_same_beside_another_one(family):
    alone, beside = search_on(family), search_on(family)
    [first, *_] = await alone.expand([alone.root], 1)
    nodes = await beside.expand([beside.root], 4)
    assert (first.text, first.thinking, first.tokens) == (nodes[0].text, nodes[0].thinking, nodes[0].tokens)
    alone.close()
    beside.close()


async def test_a_question_is_asked_of_the_path_without_its_block(family):
    search = search_on(family)
    [node] = await search.expand([search.root], 1)
    sure = Question([{"role": "user", "content": "sure?"}], {"yes": 1.0, "no": 0.0})
    [scores] = await search.label([LabelRequest(node._handle, sure.text, tuple(sure.labels))])
    assert sum(scores.probabilities.values()) == pytest.approx(1)
    search.close()
