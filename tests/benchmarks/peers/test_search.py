"""Every peer's search grows a tree of the given shape, with any texts."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.search import PeerProblem, PeerShape, PeerTally, first_label, from_json, search, to_json
from tests.benchmarks.counting_peer import Counting

PROBLEM = PeerProblem([1, 2, 3], [7, 8], ([1, 5], [2]))
SHAPES = st.builds(
    PeerShape, prompt=st.just(3), question=st.just(2), new=st.integers(1, 4), depth=st.integers(1, 4),
    keep=st.integers(1, 5), branches=st.integers(1, 4),
)  # fmt: skip


@given(SHAPES)
def test_a_search_has_the_counts_of_its_shape(shape):
    assert search(Counting(), PROBLEM, shape).shape == PeerTally.expected(shape).shape


def test_the_best_children_are_grown_further():
    grown = []

    class Picky(Counting):
        def grow(self, paths, branches, new):
            grown.append(paths)
            return [[[branch] * new for branch in range(branches)] for _ in paths]

        def value(self, families, problem):
            return [[float(path[-1]) for path in family] for family in families]

    search(Picky(), PROBLEM, PeerShape(3, 2, 1, 2, 2, 4))
    assert grown == [[PROBLEM.prompt], [[*PROBLEM.prompt, 3], [*PROBLEM.prompt, 2]]]


def test_a_search_books_what_it_prefilled_itself_and_its_parts_are_no_longer_than_the_whole():
    backend = Counting()
    backend.read = 1000
    tally = search(backend, PROBLEM, PeerShape(3, 2, 4, 1, 1, 2))
    assert tally.prefilled == 2 * (3 + 4 + 2)
    assert 0 <= tally.expanding + tally.scoring <= tally.seconds


def test_a_search_request_survives_json():
    shape = PeerShape(3, 2, 4, 1, 1, 2)
    assert from_json(json.loads(json.dumps(to_json(shape, PROBLEM)))) == (shape, PROBLEM)


def test_the_first_label_is_compared_only_with_the_second():
    ids = [1, 5, 2]
    value = first_label([math.log(p) for p in (0.1, 0.2, 0.1)], PROBLEM.labels, ids)
    assert value == pytest.approx(0.75)
