"""Valid and invalid scores, and the ranking of nodes."""

import numpy as np
import pytest

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import VerifierError
from rksc_tot.verifiers import Verifier
from tests.search.mock_search import Constant, fail, make_search


async def test_each_node_is_scored_once():
    events = []
    search = make_search(verifier=Constant(), events=events)
    level = await search.expand([search.root], 3)
    await search.score(level[:2])
    await search.score([*level, *level])
    assert search.ledger.verifier_calls == 3
    assert [event.node for event in events if event.kind == "scored"] == [1, 2, 3]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "0.5", 1j, [1.0], 10**400])
async def test_an_invalid_score_is_an_error_with_verifier_node_and_value(value):
    search = make_search(verifier=Constant(value=value))
    level = await search.expand([search.root], 1)
    with pytest.raises(VerifierError, match=r"'constant' returned .* for node 1 .* - return a finite number") as caught:
        await search.score(level)
    assert repr(value)[:70] in str(caught.value)


@pytest.mark.parametrize("value", [True, False])
async def test_pass_and_fail_are_the_scores_one_and_zero(value):
    search = make_search(verifier=Constant(value=value))
    [node] = await search.expand([search.root], 1)
    await search.score([node])
    assert (node.score, type(node.score)) == (float(value), float)


class ZeroDimensional:
    """A tensor with one number."""

    ndim = 0

    def __init__(self, number):
        self.number = number

    def item(self):
        return self.number


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (np.bool_(True), 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(2.5), 2.5),
        (ZeroDimensional(0.25), 0.25),
        (ZeroDimensional(False), 0.0),
    ],
)
async def test_scalars_of_numpy_and_tensors_with_one_number_are_scores(value, score):
    search = make_search(verifier=Constant(value=value))
    [node] = await search.expand([search.root], 1)
    await search.score([node])
    assert (node.score, type(node.score)) == (score, float)


async def test_too_few_scores_are_refused():
    class Short(Verifier):
        async def score(self, search, nodes):
            return []

    search = make_search(verifier=Short())
    with pytest.raises(VerifierError, match="0 scores for 1 nodes"):
        await search.score(await search.expand([search.root], 1))


class Picky(Verifier):
    name: str = "picky"
    bad: tuple[int, ...] = ()

    async def score(self, search, nodes):
        return [VerifierError("cannot say") if node.id in self.bad else 1.0 for node in nodes]


async def test_a_node_the_verifier_fails_on_is_pruned_and_the_others_are_scored():
    search = make_search(verifier=Picky(bad=(1,)))
    level = await search.expand([search.root], 3)
    await search.score(level)
    assert [node.score for node in level] == [None, 1.0, 1.0]
    assert level[0].pruned == "cannot say"


async def test_a_verifier_that_fails_on_everything_ends_the_search_but_not_once_it_has_worked():
    broken = make_search(verifier=Picky(bad=(1, 2)))
    with pytest.raises(VerifierError, match="cannot say"):
        await broken.score(await broken.expand([broken.root], 2))
    worked = make_search(verifier=Picky(bad=(3,)))
    await worked.score(level := await worked.expand([worked.root], 2))
    await worked.score(await worked.expand(level[:1], 1))
    assert worked.tree[3].pruned == "cannot say"


async def test_free_verifiers_count_no_calls():
    search = make_search(budget=Budget(verifier_calls=1))
    level = await search.expand([search.root], 5)
    await search.score(level)
    assert search.ledger.verifier_calls == 0
    assert None not in [node.score for node in level]


async def test_rank_is_by_rounded_score_then_likelihood_then_id():
    search = make_search()
    nodes = await search.expand([search.root], 5)
    for node, score, logprob in zip(
        nodes, [0.5, 0.50001, 0.9, None, 0.5], [-1.0, -1.00001, -9.0, -0.1, -0.5], strict=True
    ):
        node.score, node.logprobs = score, (logprob,)
    assert [node.id for node in search.rank(nodes[::-1])] == [3, 5, 1, 2, 4]


async def test_keep_prunes_the_rest_with_their_rank_and_releases_their_handles():
    events = []
    search = make_search(events=events)
    nodes = await search.expand([search.root], 4)
    await search.score(nodes)
    kept = search.keep(nodes, 1)
    assert kept == nodes[:1]
    assert [node.pruned for node in nodes[1:]] == [f"rank {i} of 4, kept 1" for i in (2, 3, 4)]
    assert search.engine.handles == 2
    search.prune(nodes[1], "again")
    assert nodes[1].pruned == "rank 2 of 4, kept 1"
    assert sum(event.kind == "pruned" for event in events) == 3


async def _scores(answer):
    return answer


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda self, search, nodes: fail(KeyError("x")), "raised KeyError"),
        (lambda self, search, nodes: fail(SystemExit(0)), "raised SystemExit"),
        (lambda self, search, nodes: _scores(None), "raised TypeError"),
        (lambda self, search, nodes: [1.0], "raised TypeError"),
    ],
)
async def test_a_verifier_class_that_breaks_is_a_verifier_error_with_its_name(score, words):
    broken = type("Broken", (Constant,), {"score": score})
    search = make_search(verifier=broken())
    with pytest.raises(VerifierError, match=f"verifier 'constant' {words}"):
        await search.score(await search.expand([search.root], 1))
