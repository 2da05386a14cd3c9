"""The products of attention: by either way, with the same bits."""

import pytest
import torch

from rksc_tot.engine.attention import matmul as products
from rksc_tot.engine.attention.matmul import add_weights_times_values, queries_times_keys
from rksc_tot.engine.attention.plan import LONG_PROMPT, TILE


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("size", [24, 64, 128])
@pytest.mark.parametrize(("rows", "keys"), [(4, 16), (24, 100), (24, TILE), (200, TILE), (30, 700)])
def test_scores_have_the_same_bits_by_either_way(size, rows, keys, monkeypatch):
    queries, held = torch.randn(3, rows, size), torch.randn(3, keys, size)
    found = []
    for much in (0, 1 << 60):
        monkeypatch.setattr(products, "MUCH", much)
        out = torch.empty(3, rows, keys)
        queries_times_keys(queries, held, out)
        found.append(out)
    assert torch.equal(*found)
    assert torch.allclose(found[0].double(), queries.double() @ held.double().transpose(1, 2), atol=1e-4)


@pytest.mark.parametrize(("rows", "keys"), [(4, 16), (24, 100), (24, 300), (200, TILE), (30, 3 * TILE)])
def test_weighted_values_have_the_same_bits_by_either_way(rows, keys, monkeypatch):
    weights, values = torch.rand(3, rows, keys), torch.randn(3, keys, 64)
    found = []
    for much in (0, 1 << 60):
        monkeypatch.setattr(products, "MUCH", much)
        out = torch.ones(3, rows, 64)
        add_weights_times_values(out, weights, values, TILE)
        found.append(out)
    assert torch.equal(*found)
    assert torch.allclose(found[0].double(), 1 + weights.double() @ values.double(), atol=1e-3)


def test_what_comes_after_a_long_prompt_takes_it_by_one_way_however_few_rows_there_are():
    weights, values = torch.rand(3, 200, LONG_PROMPT), torch.randn(3, LONG_PROMPT, 64)
    whole, few = torch.zeros(3, 200, 64), torch.zeros(3, 4, 64)
    add_weights_times_values(whole, weights, values, LONG_PROMPT)
    add_weights_times_values(few, weights[:, :4], values, LONG_PROMPT)
    assert torch.equal(few, whole[:, :4])


def test_wide_heads_go_one_way_whatever_the_size(monkeypatch):
    calls = []
    monkeypatch.setattr(products, "_linear", lambda *_: calls.append(1))
    queries_times_keys(torch.randn(1, 400, 2 * TILE), torch.randn(1, 400, 2 * TILE), torch.empty(1, 400, 400))
    assert not calls  # there the two ways differ in the last bits
