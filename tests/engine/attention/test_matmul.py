"""The products of attention: a row has the same bits in every size of product, or the engine reports that it has not."""

import math

import pytest
import torch

from rksc_tot.engine.attention import matmul
from rksc_tot.engine.attention.matmul import (
    LARGE,
    add_weights_times_values,
    long_products_agree,
    proved,
    queries_times_keys,
    scores_choice,
    values_choice,
)
from rksc_tot.engine.attention.plan import LONG_PROMPT, TILE

HEADS = [8, 12, 64, 128, 256]
SHAPES = [
    (1, 4, 16),
    (3, 4, 47),
    (1, 14, 90),
    (2, 60, 99),
    (1, 170, 118),
    (2, 200, TILE),
    (60, 16, 70),
]  # sets, rows, keys
SETS, ROWS = 60, 200


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("head", HEADS)
def test_scores_of_a_row_do_not_depend_on_the_size_of_the_product(head):
    queries, keys = torch.randn(SETS, ROWS, head), torch.randn(SETS, TILE, head)

    def scores(sets, rows, count):
        out = torch.empty(sets, rows, count)
        queries_times_keys(queries[:sets, :rows], keys[:sets, TILE - count :], out)
        return out

    whole = scores(SETS, ROWS, TILE)
    assert torch.allclose(whole.double(), queries.double() @ keys.double().transpose(1, 2), atol=1e-4)
    for sets, rows, count in SHAPES:
        same = scores(sets, rows, count).equal(whole[:sets, :rows, TILE - count :])
        assert same or not proved(head, head)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tiles", [1, 3])
def test_values_of_a_row_do_not_depend_on_the_size_of_the_product(head, tiles):
    weights, values = torch.rand(SETS, ROWS, tiles * TILE), torch.randn(SETS, tiles * TILE, head)

    def weighted(sets, rows, weights):
        out = torch.ones(sets, rows, head)
        add_weights_times_values(out, weights[:sets, :rows], values[:sets, : weights.shape[-1]], TILE)
        return out

    assert torch.allclose(weighted(SETS, ROWS, weights).double(), 1 + weights.double() @ values.double(), atol=1e-3)
    for sets, rows, count in SHAPES:
        visible = (tiles - 1) * TILE + count
        padded = torch.cat([weights[..., :visible], torch.zeros_like(weights[..., visible:])], -1)
        whole = weighted(SETS, ROWS, padded)
        same = weighted(sets, rows, weights[..., :visible]).equal(whole[:sets, :rows])
        assert same or not proved(head, head)


def test_a_long_prompt_is_one_product_with_the_same_bits_for_any_number_of_rows():
    weights, values = torch.rand(3, ROWS, LONG_PROMPT), torch.randn(3, LONG_PROMPT, 64)
    whole, few = torch.zeros(3, ROWS, 64), torch.zeros(3, 4, 64)
    add_weights_times_values(whole, weights, values, LONG_PROMPT)
    add_weights_times_values(few, weights[:, :4], values, LONG_PROMPT)
    assert torch.equal(few, whole[:, :4]) or not long_products_agree(64, torch.get_num_threads())


def next_bits(product):
    return product.nextafter(torch.tensor(math.inf))


class Faulty:
    """Kernels of a processor on which the kernel ``wrong`` has other last bits if ``when`` is true."""

    def __init__(self, monkeypatch, wrong, when):
        scores, add_values = matmul._scores, matmul._add_values
        self.used = set()

        def faulty_scores(kernel, queries, keys, out):
            self.used.add(kernel)
            scores(kernel, queries, keys, out)
            if kernel in wrong and when(queries, keys):
                out.copy_(next_bits(out))

        def faulty_values(kernel, out, weights, values, step):
            self.used.add(kernel)
            add_values(kernel, out, weights, values, step)
            if kernel in wrong and when(weights, values):
                out.copy_(next_bits(out))

        monkeypatch.setattr(matmul, "_scores", faulty_scores)
        monkeypatch.setattr(matmul, "_add_values", faulty_values)


@pytest.fixture
def forgotten():
    """The cached choices of kernels are dropped before and after the test."""
    known = (scores_choice, values_choice, long_products_agree)
    for found in known:
        found.cache_clear()
    yield
    for found in known:
        found.cache_clear()


def few_rows(left, right):
    return left.shape[1] < 8


def few_keys(left, right):
    return left.shape[2] < 24 or right.shape[1] < 24


def unaligned(left, right):
    return right.data_ptr() % 64 != 0


def always(left, right):
    return True


STEADY = {"batched", "onednn"}
FAULTS = {
    "the batched product by rows": ({"batched"}, few_rows, {"onednn"}),
    "the batched product by keys": ({"batched"}, few_keys, {"onednn"}),
    "oneDNN by rows": ({"onednn"}, few_rows, {"batched"}),
    "the kernels from each other": ({"onednn"}, always, STEADY),
    "both kernels by rows": (STEADY, few_rows, set()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("choice_for", [scores_choice, values_choice])
def test_a_kernel_whose_bits_depend_on_the_shape_is_not_chosen(choice_for, fault, forgotten, monkeypatch):
    wrong, when, steady = FAULTS[fault]
    both_agree_here = choice_for(64, 1) == "size"
    choice_for.cache_clear()
    Faulty(monkeypatch, wrong, when)
    allowed = steady if both_agree_here and steady else steady | {"unproved"}
    assert choice_for(64, 1) in allowed


def test_a_product_that_depends_on_memory_alignment_is_not_chosen(forgotten, monkeypatch):
    Faulty(monkeypatch, {"batched"}, unaligned)
    assert scores_choice(12, 1) in ("onednn", "unproved")  # 12 features: keys begin anywhere


@pytest.mark.parametrize("fault", ["the batched product by rows", "oneDNN by rows"])
def test_the_chosen_kernel_computes_products_of_every_size(fault, forgotten, monkeypatch):
    wrong, when, _ = FAULTS[fault]
    faulty = Faulty(monkeypatch, wrong, when)
    choices = {scores_choice(64, torch.get_num_threads()), values_choice(64, torch.get_num_threads())}
    faulty.used.clear()
    for rows in (4, LARGE // TILE + 4):
        queries_times_keys(torch.randn(1, rows, 64), torch.randn(1, TILE, 64), torch.empty(1, rows, TILE))
        add_weights_times_values(torch.zeros(1, rows, 64), torch.rand(1, rows, TILE), torch.randn(1, TILE, 64), TILE)
    assert faulty.used == choices or "unproved" in choices
