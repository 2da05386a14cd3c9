"""All methods of attention give equal results, so that their times can be compared."""

import math

import pytest
import torch

from benchmarks.speed import attention
from benchmarks.speed.attention import SUFFIX, AttentionCase, Heads, Sizes, compare, copy_bytes, measure

CPU = torch.device("cpu")


@pytest.fixture(params=[(Heads(9, 3, 64), 64, 8), (Heads(4, 4, 32), 33, 3), (Heads(4, 1, 16), 40, 1)])
def case(request):
    return AttentionCase(*request.param, CPU, torch.float32)


@torch.inference_mode()
def plainly(case):
    """Attention of every branch over the prefix and its own tokens, written out."""
    per = case.heads.queries // case.heads.keys
    rows = []
    for branch in range(case.branches):
        seen = [*range(case.prefix), *(case.prefix + step * case.branches + branch for step in range(SUFFIX))]
        k, v = (part[:, seen].repeat_interleave(per, 0) for part in (case.keys, case.values))
        scores = case.query[0, :, branch, None] @ k.transpose(1, 2) / math.sqrt(case.heads.size)
        rows.append((scores.softmax(-1) @ v)[:, 0])
    return torch.stack(rows)


@torch.inference_mode()
def test_every_method_gives_the_attention_written_out(case):
    wanted = plainly(case)
    for way in (case.ours(), *case.mask().values(), *case.copy().values()):
        assert way().shape == wanted.shape
        torch.testing.assert_close(way(), wanted, atol=1e-5, rtol=1e-4)


def test_ours_stores_the_new_rows_itself(case):
    before = case.arena.keys[0].clone()
    case.arena.keys[0][:, -case.branches :] = 0
    with torch.inference_mode():
        case.ours()()
    assert torch.equal(case.arena.keys[0], before)


@torch.inference_mode()
def test_the_size_of_copies_is_computed_in_advance(case):
    made = []

    def keep(q, k, v, bias, shown):
        made.extend((k, v))
        return {}

    case._ways = keep
    case.copy()
    size = sum(part.numel() * part.element_size() for part in made)
    assert size == copy_bytes(case.heads, case.prefix, case.branches, 4)


def test_every_round_measures_all_three_methods(case):
    times, difference = compare(case, 4)
    assert {name: array.shape for name, array in times.items()} == dict.fromkeys(("ours", "mask", "copy"), (1, 4))
    assert all((array > 0).all() for array in times.values())
    assert difference < 1e-5


def test_sizes_that_do_not_fit_are_skipped_and_named(monkeypatch):
    monkeypatch.setattr(attention, "QUICK", {"": Sizes(Heads(2, 1, 8), (16, 64), (2, 4))})
    monkeypatch.setattr(attention, "MOST_BYTES", copy_bytes(Heads(2, 1, 8), 64, 2, 4))
    figures = measure("cpu", "float32", 1, quick=True)
    assert figures["skipped"] == "64x4"
    assert "over_copy.64x4" not in figures
    pairs = [(figures[f"over_mask.{size}"], figures[f"over_copy.{size}"]) for size in ("16x2", "16x4", "64x2")]
    assert figures["over_best_other_min"] == min(map(min, pairs))
