"""Attention in parts by fused operators equals attention to all keys."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from rksc_tot.cache.kv_budget.slot_pool import SlotPool
from rksc_tot.cache.prefix_tree import PrefixTree
from rksc_tot.engine.attention import fused
from rksc_tot.engine.attention.fused import Attended, attend, attend_group, merge, operator_for
from rksc_tot.engine.attention.plan import Block
from rksc_tot.engine.attention.planner import build
from rksc_tot.policies.eviction.rsbcm import RSBCM

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}  # of outputs around 1

sizes = st.integers(1, 5)


def exact(query, key, value, bias=None):
    """Attention in double precision, row by row; 0 and -inf for rows that see no key."""
    scores = query.double() @ key.double().transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.double()
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
    return Attended(weights @ value.double(), lse)


@st.composite
def products(draw, same_size=True):
    """Query, key, value ``[A, H, ·, D]`` and a bias ``[H, M, T]`` under which some rows see no key."""
    heads, sets, rows, keys = draw(sizes), draw(sizes), draw(st.integers(1, 40)), draw(st.integers(1, 70))
    size = draw(st.sampled_from([8, 20, 64]))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    loud = draw(st.sampled_from([1.0, 30.0]))  # scores of thousands
    torch.manual_seed(draw(st.integers(0, 1 << 16)))
    query = (torch.randn(heads, sets, rows, size) * loud * size**-0.5).to(dtype)
    key = (torch.randn(heads, sets, keys, size) * loud).to(dtype)
    value = torch.randn(heads, sets, keys, size if same_size else size + 8).to(dtype)
    bias = None
    if draw(st.booleans()):
        bias = torch.zeros(sets, rows, keys).masked_fill_(torch.rand(sets, rows, keys) < 0.5, -math.inf)
        bias[:, draw(st.integers(0, rows - 1))] = -math.inf
    return query, key, value, bias


def check(found, wanted, query, key):
    """The difference must be within the rounding of results and of float32 scores of that size."""
    size = float(query.double().abs().amax() * key.double().abs().amax() * query.shape[-1])
    near = TOLERANCE[query.dtype] + 1e-6 * size
    seen = wanted.lse != -math.inf
    assert torch.equal(found.lse != -math.inf, seen)
    assert (found.out.double() - wanted.out).abs().max() <= 4 * near
    assert found.out[~seen].eq(0).all()
    assert found.lse.dtype == torch.float32
    assert (
        (found.lse[seen] - wanted.lse[seen])
        .abs()
        .le(1e-6 * size + (1e-5 if query.dtype == torch.float32 else 1e-3))
        .all()
    )


@settings(max_examples=120, deadline=None)
@given(products(), st.sampled_from(["cpu", "matmul"]))
def test_every_operator_gives_output_and_log_sum_exp(product, by):
    query, key, value, bias = product
    check(attend(query, key, value, bias, by=by), exact(query, key, value, bias), query, key)


@settings(max_examples=30, deadline=None)
@given(products(same_size=False))
def test_values_of_another_size_than_keys_use_an_operator_that_supports_them(product):
    query, key, value, bias = product
    by = operator_for(query, value, masked=bias is not None)
    assert by == "matmul"
    check(attend(query, key, value, bias, by=by), exact(query, key, value, bias), query, key)


@settings(max_examples=60, deadline=None)
@given(products(), st.data())
def test_merged_parts_equal_attention_to_all_keys(product, data):
    query, key, value, bias = product
    cut = data.draw(st.integers(0, key.shape[2]))  # at either end one side is empty
    parts = [
        attend(query, key[:, :, part], value[:, :, part], None if bias is None else bias[..., part], by="cpu")
        for part in (slice(0, cut), slice(cut, None))
    ]
    parts = [Attended(part.out.float(), part.lse) for part in parts]
    check(merge(*parts), exact(query, key, value, bias), query, key)
    if cut in (0, key.shape[2]):
        full = parts[cut == 0]
        assert all(torch.equal(a, b) for a, b in zip(merge(*parts), full, strict=True))


def test_a_side_without_weight_cannot_overflow():
    one = Attended(torch.ones(1, 1, 4, 2), torch.tensor([[[1e4, -1e4, -math.inf, -math.inf]]]))
    other = Attended(torch.full((1, 1, 4, 2), 3.0), torch.tensor([[[-1e4, 1e4, 5.0, -math.inf]]]))
    joined = merge(one, other)
    assert joined.out[0, 0, :3, 0].tolist() == [1.0, 3.0, 3.0]
    assert joined.lse.tolist() == [[[1e4, 1e4, 5.0, -math.inf]]]
    assert joined.out.isfinite().all()


def test_rows_that_see_no_key_have_output_0_with_every_operator():
    bias = torch.tensor([[[0.0, -math.inf], [-math.inf, -math.inf]]])
    found = fused._without_blind(torch.full((1, 1, 2, 3), math.nan), torch.full((1, 1, 2), math.nan), bias)
    assert found.out[0, 0, 1].tolist() == [0, 0, 0]
    assert found.lse[0, 0, 1] == -math.inf
    assert found.out[0, 0, 0].isnan().all()


def grown(prompts, branches, tokens):
    """Prompts with branches of different lengths, whose last tokens are the rows; and the number of slots."""
    tree = PrefixTree(SlotPool(1 << 14), RSBCM())
    blocks = []
    for n, length in enumerate(prompts):
        prompt = tree.walk(tree.origin, [1000 * n + 500 + i for i in range(length)])
        tree.residency.store(prompt, tree.residency.pool.allocate(length))
        for branch in range(branches[n % len(branches)]):
            count, rows = tokens[(n + branch) % len(tokens)]
            own = tree.walk(prompt, [7 * n + branch, *range(count - 1)])
            slots = tree.residency.pool.allocate(count)
            tree.residency.store(own, slots)
            blocks.append(Block(own.lineage(), own.end - rows, own.tokens[-rows:], slots[-rows:], [], prompt.end))
    return blocks, tree.residency.pool.extent


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    branches=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    tokens=st.lists(
        st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), min_size=1, max_size=4
    ),
    per=st.sampled_from([1, 3]),
    window=st.sampled_from([None, 5, 40]),
    sinks=st.booleans(),
)
@example(prompts=[40, 50, 45], branches=[3, 4, 3], tokens=[(4, 1)], per=3, window=None, sinks=False)  # padded together
@example(prompts=[40, 50, 45], branches=[3, 4, 3], tokens=[(4, 1)], per=3, window=30, sinks=True)
def test_a_group_attends_to_the_visible_keys_of_each_row(prompts, branches, tokens, per, window, sinks):
    heads, size = 2, 16
    blocks, extent = grown(prompts, branches, tokens)
    plan = build(blocks, CPU)
    torch.manual_seed(0)
    keys, values = torch.randn(2, heads, extent, size)
    query = torch.randn(heads * per, len(plan.slots), size)
    sink = torch.randn(heads * per) if sinks else None
    out = torch.full((len(plan.slots), heads * per, size), math.nan)
    for group in plan.groups:
        pieces, width = group.queries.shape
        q = query[:, group.rows].view(heads, per, pieces, width, size).transpose(1, 2)
        found = attend_group(group, q.reshape(heads, pieces, per * width, size), keys, values, window, sink)
        found = found.view(heads, pieces, per, width, size).permute(1, 3, 0, 2, 4).reshape(pieces * width, -1, size)
        out[group.real] = found if group.valid is None else found[group.valid]
    row = 0
    for block in blocks:
        for n in range(len(block.tokens)):
            position = block.start + n
            path = [slot for segment in block.lineage for slot in segment.kv.slots][: position + 1]
            seen = path if window is None else path[-window:]
            scores = torch.einsum("hgd,htd->hgt", query[:, row].view(heads, per, size).double(), keys[:, seen].double())
            if sink is not None:
                scores = torch.cat([scores, sink.view(heads, per, 1).double()], -1)
            weights = scores.softmax(-1)[..., : len(seen)]
            wanted = torch.einsum("hgt,htd->hgd", weights, values[:, seen].double()).reshape(heads * per, size)
            assert (out[row].double() - wanted).abs().max() < 1e-5
            row += 1


# -- what can be known of CUDA without one -------------------------------------------------------------------------------


@pytest.fixture
def ampere(monkeypatch):
    """Meta tensors that claim to be on a GPU of compute capability 8.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    with FakeTensorMode():
        yield torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", [1, 24, 33])  # one operator pads what it says of rows
def test_the_operators_of_cuda_take_these_arguments(ampere, dtype, masked, rows):
    query, key, value = (torch.empty(3, 4, n, 64, device=ampere, dtype=dtype) for n in (rows, 37, 37))
    bias = torch.empty(4, rows, 37, device=ampere) if masked else None
    by = operator_for(query, value, masked=masked)
    assert by == ("flash" if dtype != torch.float32 and not masked else "efficient")
    found = attend(query, key, value, bias, by=by)
    assert found.out.shape == (3, 4, rows, 64)
    assert found.out.dtype == dtype
    assert found.lse.shape == (3, 4, rows)
    assert found.lse.dtype == torch.float32
    assert found.out.device.type == found.lse.device.type == "cuda"


@pytest.mark.parametrize(("name", "by_keyword"), [
    ("_scaled_dot_product_flash_attention", {"scale"}),
    ("_scaled_dot_product_efficient_attention", {"scale"}),
    ("_scaled_dot_product_flash_attention_for_cpu", {"attn_mask", "scale"}),
])  # fmt: skip
def test_private_operators_of_torch_accept_our_arguments(name, by_keyword):
    schema = getattr(torch.ops.aten, name).default._schema
    first = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    assert first[:3] == ["query", "key", "value"]
    assert {argument.name for argument in schema.arguments if argument.kwarg_only} == by_keyword
    if "efficient" in name:
        assert first[3:5] == ["attn_bias", "compute_log_sumexp"]
    assert [str(returned.type) for returned in schema.returns][:2] == ["Tensor", "Tensor"]


@pytest.mark.parametrize("width", [1, 15, 16, 37])
def test_the_layout_of_a_bias_fits_the_operator(width):
    bias = torch.rand(4, 3, width)
    laid = fused._aligned(bias, torch.empty(2, 4, 3, 8, dtype=torch.bfloat16))
    assert laid.shape == (2, 4, 3, width)
    assert torch.equal(laid[1], bias.bfloat16())
    sets, heads, rows, keys = laid.stride()
    assert keys == 1
    assert all(stride * laid.element_size() % 16 == 0 for stride in (sets, heads, rows))
    assert laid.data_ptr() % 16 == 0


@pytest.mark.parametrize(("query_size", "value_size", "by"), [(64, 64, "flash"), (192, 128, "efficient"),
                                                              (512, 512, "efficient"), (20, 20, "matmul")])  # fmt: skip
def test_the_operator_depends_on_head_sizes(ampere, query_size, value_size, by):
    query = torch.empty(1, 1, 4, query_size, device=ampere, dtype=torch.bfloat16)
    value = torch.empty(1, 1, 9, value_size, device=ampere, dtype=torch.bfloat16)
    key = torch.empty(1, 1, 9, query_size, device=ampere, dtype=torch.bfloat16)
    assert operator_for(query, value, masked=False) == by
    assert attend(query, key, value, by=by).out.shape == (1, 1, 4, value_size)


def test_older_gpus_do_not_use_flash(ampere, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    query = torch.empty(1, 1, 4, 64, device=ampere, dtype=torch.float16)
    assert operator_for(query, query, masked=False) == "efficient"
