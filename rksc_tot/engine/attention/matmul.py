"""The two products of attention: queries times keys, and weights times values.

In float32 on the CPU there are two kernels: MKL's batched product, and oneDNN's product of one set at a time, which takes about
half the time for large sets. The size of a set depends on the other rows of the batch, so the size may select the kernel only if
both kernels give the same bits. :func:`scores_choice` and :func:`values_choice` test that, once for a head size and a number of
threads. If the kernels differ, the first kernel that gives equal bits in every shape computes all products. If neither does, the
size selects the kernel, and ``batch_invariant`` is False.

Observed: on an AMD processor the kernels agree except for values of 8 features; on an Intel processor with AVX-512 they differ
from 96 features on; on MKL's AVX2 path they differ at all sizes, because the bits of MKL's product depend on the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product as pairs
from typing import Literal

import torch
from torch import Tensor

from rksc_tot.engine.attention.plan import LONG_PROMPT, TILE

Kernel = Literal["batched", "onednn"]
Choice = Literal["size", "batched", "onednn", "unproved"]
"""The kernel of a product: selected by size, always one kernel, or ``unproved`` (selected by size without proof)."""

LARGE = 20_000
"""Rows times keys of a set from which oneDNN is faster."""
MANY_SETS = 48
"""With more sets than this, a call of oneDNN for each set takes longer than the batched product."""
LEAST_ROWS = 4
"""In products with fewer rows MKL sums in another order. Each thread gets this many rows. With fewer than :data:`FEW_ROWS` rows
in all, one thread may get the remainder."""
FEW_ROWS = 12
LEAST_KEYS = 16
"""In products with fewer keys MKL sums in another order."""


def rows_allowed(rows: int) -> bool:
    """Whether a product may have this number of rows."""
    return rows % LEAST_ROWS == 0 or rows >= FEW_ROWS


def queries_times_keys(queries: Tensor, keys: Tensor, out: Tensor) -> None:
    """``out [S, M, T] = queries [S, M, D] @ keys [S, T, D]ᵀ``, all of one dtype, float32 at least."""
    kernel: Kernel = "batched"
    if _has_both_kernels(queries):
        kernel = _kernel(scores_choice(queries.shape[-1], torch.get_num_threads()), queries, keys.shape[1])
    _scores(kernel, queries, keys, out)


def add_weights_times_values(out: Tensor, weights: Tensor, values: Tensor, step: int) -> None:
    """``out [S, M, D] += weights [S, M, T] @ values [S, T, D]``, ``step`` keys at a time."""
    kernel: Kernel = "batched"
    if _has_both_kernels(weights):
        kernel = "onednn"  # with more keys than a tile, MKL's order depends on their number
        if step <= TILE:
            choice = values_choice(values.shape[-1], torch.get_num_threads())
            kernel = _kernel(choice, weights, min(step, weights.shape[-1]))
    _add_values(kernel, out, weights, values, step)


def _kernel(choice: Choice, rows: Tensor, keys: int) -> Kernel:
    if choice in ("batched", "onednn"):
        return choice
    return "onednn" if rows.shape[1] * keys >= LARGE and rows.shape[0] <= MANY_SETS else "batched"


def _scores(kernel: Kernel, queries: Tensor, keys: Tensor, out: Tensor) -> None:
    if kernel == "onednn":
        for n in range(queries.shape[0]):
            out[n] = _linear(queries[n], keys[n])
    else:
        torch.bmm(queries, keys.transpose(1, 2), out=out)


def _add_values(kernel: Kernel, out: Tensor, weights: Tensor, values: Tensor, step: int) -> None:
    for first in range(0, weights.shape[-1], step):
        part, seen = weights[..., first : first + step], values[:, first : first + step]
        if kernel == "onednn":
            for n in range(weights.shape[0]):
                out[n] += _linear(part[n], seen[n].t())
        else:
            out.baddbmm_(part, seen)


def _has_both_kernels(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _linear(rows: Tensor, weight: Tensor) -> Tensor:
    """``rows [M, K] @ weight [N, K]ᵀ`` by oneDNN."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return product


# -- which kernels give the same bits ------------------------------------------------------------------------------------

SETS, ROWS = 3, 200  # of the largest test product
BATCHED_ROWS = (4, 8, *range(12, 26), 28, 31, 36, 40, 48, 49, 64, 100)
KEYS = (16, 17, 24, 31, 33, 64, 100, TILE)
ONEDNN_SHAPES = ((1, 4, 16), (2, 4, TILE), (1, 13, 31), (3, 24, 100), (1, 100, 17))
"""Sets, rows, keys of test products. They are few, since oneDNN compiles a kernel for each shape."""

Product = Callable[[Kernel, int, int, int], Tensor]
"""Takes a kernel and numbers of sets, last rows and keys; returns the product."""


def proved(key_size: int, value_size: int) -> bool:
    """Whether the bits of both products depend only on a row and its visible keys, for heads of these sizes."""
    threads = torch.get_num_threads()
    choices = scores_choice(key_size, threads), values_choice(value_size, threads)
    return "unproved" not in choices and long_products_agree(value_size, threads)


@cache
def scores_choice(head: int, threads: int) -> Choice:
    """The kernel of queries times keys, for ``head`` features and a number of threads.

    A part of a product must have the same bits as in the whole product, for all numbers of rows, keys and sets and any alignment.
    """
    queries, keys = _random(SETS, ROWS, head), _random(SETS, TILE, head)

    def product(kernel: Kernel, sets: int, rows: int, count: int) -> Tensor:
        out = torch.empty(sets, rows, count)
        _scores(kernel, queries[:sets, ROWS - rows :], keys[:sets, TILE - count :], out)
        return out

    return _choice(product, lambda kernel, count: product(kernel, SETS, ROWS, TILE)[..., TILE - count :])


@cache
def values_choice(head: int, threads: int) -> Choice:
    """The kernel of weights times values, for ``head`` features and a number of threads.

    Tested like :func:`scores_choice`. Padding, which is keys of weight 0 at the end, must change no bit.
    """
    weights, values, before = _random(SETS, ROWS, TILE).abs(), _random(SETS, TILE, head), _random(SETS, ROWS, head)

    def product(kernel: Kernel, sets: int, rows: int, count: int) -> Tensor:
        out = before[:sets, ROWS - rows :].clone()
        _add_values(kernel, out, weights[:sets, ROWS - rows :, :count], values[:sets, :count], TILE)
        return out

    def padded(kernel: Kernel, count: int) -> Tensor:
        out, whole = before.clone(), weights.clone()
        whole[..., count:] = 0
        _add_values(kernel, out, whole, values, TILE)
        return out

    return _choice(product, padded)


@cache
def long_products_agree(head: int, threads: int) -> bool:
    """Whether the bits of a row of the product over a long prompt are independent of the number of rows."""
    keys = LONG_PROMPT + 76
    weights, values = _random(1, ROWS, keys).abs(), _random(1, keys, head)

    def product(rows: int) -> Tensor:
        out = torch.zeros(1, rows, head)
        add_weights_times_values(out, weights[:, ROWS - rows :], values, keys)
        return out

    whole = product(ROWS)
    return all(product(rows).equal(whole[:, ROWS - rows :]) for rows in (LEAST_ROWS, FEW_ROWS + 1))


def _choice(product: Product, whole: Callable[[Kernel, int], Tensor]) -> Choice:
    """Test both kernels. ``whole``: the product of all rows for a number of keys."""
    kernels: list[Kernel] = ["batched", "onednn"] if torch.backends.mkldnn.is_available() else ["batched"]
    wholes = {kernel: {count: whole(kernel, count) for count in KEYS} for kernel in kernels}

    def agrees_with_itself(kernel: Kernel) -> bool:
        shapes = ONEDNN_SHAPES if kernel == "onednn" else _batched_shapes()
        return all(
            product(kernel, sets, rows, count).equal(wholes[kernel][count][:sets, ROWS - rows :])
            for sets, rows, count in shapes
        )

    steady = [kernel for kernel in kernels if agrees_with_itself(kernel)]
    if len(steady) == 2 and all(wholes["batched"][count].equal(wholes["onednn"][count]) for count in KEYS):
        return "size"
    return steady[0] if steady else "unproved"


def _batched_shapes() -> Iterator[tuple[int, int, int]]:
    for n, (rows, count) in enumerate(pairs(BATCHED_ROWS, KEYS)):
        yield 1 + n % SETS, rows, count


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
