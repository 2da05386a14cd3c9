"""Attention of one decode step in one layer, for branches of a shared prefix: ours compared with two usual methods.

``python -m benchmarks attention [--json] [--quick] [--device cuda] [--dtype bfloat16] [--rounds N]``. The prefix has P tokens. B
branches have 16 tokens each, and the last token is the query.

* *ours*: the engine's attention function on a plan and an arena as in a search, where tokens of branches lie between those of
  other branches; with writing the new keys and values, without the plan, which is made once a pass
* *mask*: torch's attention over prefix and branches in one sequence, under a mask that separates the branches
* *copy*: torch's batched attention with a copy of the prefix for every branch; copying is not counted

*mask* and *copy* run as in transformers, with torch's grouped heads or with repeated key heads, whichever is faster here.

* ``over_mask.PREFIXxB``, ``over_copy.PREFIXxB``: time of the other method over ours, with 9 query heads and 3 key heads of 64
  dimensions (SmolLM2-135M), and under ``wide.`` with 32 and 8 heads of 128; ``low``, ``high``: 95 % by bootstrap over rounds,
  each of which runs all three
* ``over_best_other_min``: smallest ratio of the faster other method over ours; ``at``: its size
* ``microseconds.PREFIXxB``: time of ours
* ``max_difference``: largest difference between the outputs of ours and of the others
* ``skipped``: sizes at which another method would take more than 6 GiB
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from benchmarks.common.report import Quick, Report
from benchmarks.speed.paper import ratio
from rksc_tot.cache.arena import Arena
from rksc_tot.cache.segment import Segment
from rksc_tot.engine.attention.plan import Block, Plan
from rksc_tot.engine.attention.planner import build
from rksc_tot.engine.attention.tree_attention import Scratch, Tree, tree_attention

SUFFIX = 16
MOST_BYTES = 6 << 30
ROUNDS = 7
LEAST_SECONDS = 0.004  # of one measurement; shorter calls are repeated
Attend = Callable[[], Tensor]
Shown = Callable[[Tensor], Tensor]


class Heads(NamedTuple):
    """Query heads, key heads and their dimension."""

    queries: int
    keys: int
    size: int


class Sizes(NamedTuple):
    """The measured sizes for some heads."""

    heads: Heads
    prefixes: tuple[int, ...]
    branches: tuple[int, ...]


SIZES = {
    "": Sizes(Heads(9, 3, 64), (512, 1024, 2048, 4096, 8192), (8, 16, 32, 64, 128)),
    "wide.": Sizes(Heads(32, 8, 128), (1024, 4096), (8, 32)),
}
QUICK = {"": Sizes(Heads(9, 3, 64), (512, 1024), (8, 32)), "wide.": Sizes(Heads(32, 8, 128), (512,), (8,))}


class AttentionCase:
    """Keys and values of one size, and the three methods of attention. Every method returns ``[B, Hq, D]``."""

    def __init__(self, heads: Heads, prefix: int, branches: int, device: torch.device, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.heads, self.prefix, self.branches = heads, prefix, branches
        rows = prefix + branches * SUFFIX
        self.plan = plan_of(prefix, branches, device)
        self.arena = Arena(rows)
        self.arena.reserve(rows)
        self.query = torch.randn(1, heads.queries, branches, heads.size, device=device, dtype=dtype)
        self.keys, self.values = torch.randn(2, heads.keys, rows, heads.size, device=device, dtype=dtype)
        self.arena.write(0, self.keys, self.values, torch.arange(rows, device=device))
        self._layer = nn.Module()
        self._layer.layer_idx = 0  # type: ignore[assignment]

    def ours(self) -> Attend:
        """The engine's function, which stores the new keys and values first."""
        new = [part[None, :, -self.branches :].contiguous() for part in (self.keys, self.values)]
        tree = Tree(self.plan, self.arena, Scratch())
        return lambda: tree_attention(self._layer, self.query, new[0], new[1], None, tree=tree)[0][0]

    def mask(self) -> dict[str, Attend]:
        """All branches in one sequence, by layout of heads."""
        owner = torch.arange(self.keys.shape[1], device=self.keys.device) - self.prefix
        mine = (owner < 0) | (owner % self.branches == torch.arange(self.branches, device=owner.device)[:, None])
        bias = torch.zeros(mine.shape, dtype=self.keys.dtype, device=owner.device).masked_fill(~mine, float("-inf"))
        return self._ways(self.query, self.keys[None], self.values[None], bias, lambda out: out[0].transpose(0, 1))

    def copy(self) -> dict[str, Attend]:
        """A copy of the prefix for every branch, by layout of heads."""
        shape = (self.heads.keys, SUFFIX, self.branches, self.heads.size)
        copies = []
        for part in (self.keys, self.values):
            own = part[:, self.prefix :].view(shape).permute(2, 0, 1, 3)  # [B, Hk, 16, D]
            shared = part[:, : self.prefix].expand(self.branches, -1, -1, -1)
            copies.append(torch.cat([shared, own], 2))
        query = self.query.permute(2, 1, 0, 3).contiguous()  # [B, Hq, 1, D]
        return self._ways(query, copies[0], copies[1], None, lambda out: out[:, :, 0])

    def _ways(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, shown: Shown) -> dict[str, Attend]:
        """Torch's attention with grouped heads, and with repeated key heads where they fit into memory."""
        per = q.shape[1] // k.shape[1]

        def grouped() -> Tensor:
            return shown(F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True))

        def repeated() -> Tensor:
            full = [part.repeat_interleave(per, 1) for part in (k, v)]
            return shown(F.scaled_dot_product_attention(q, full[0], full[1], bias))

        fits = 2 * per * k.numel() * k.element_size() <= MOST_BYTES
        return {"grouped": grouped} | ({"repeated": repeated} if fits else {})


def copy_bytes(heads: Heads, prefix: int, branches: int, element: int) -> int:
    """Bytes of the copies of prefix and own tokens."""
    return 2 * branches * heads.keys * (prefix + SUFFIX) * heads.size * element


def plan_of(prefix: int, branches: int, device: torch.device) -> Plan:
    """The plan of a decode step. Slots are allocated as in a search: a row of every branch in each step."""
    root = Segment(None, [], 0, 0)
    shared = Segment(root, [0] * prefix, 0, 1)
    shared.kv.slots = list(range(prefix))
    blocks = []
    for branch in range(branches):
        own = Segment(shared, [0] * SUFFIX, prefix, 2 + branch)
        own.kv.slots = [prefix + step * branches + branch for step in range(SUFFIX)]
        blocks.append(Block(own.lineage(), own.end - 1, [0], own.kv.slots[-1:], [0], prefix))
    return build(blocks, device)


def seconds(attend: Attend, repeats: int = 1) -> float:
    """Seconds of one call, as the mean of ``repeats`` calls."""
    start = time.perf_counter()
    for _ in range(repeats):
        out = attend()
    if out.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


@torch.inference_mode()
def compare(case: AttentionCase, rounds: int) -> tuple[dict[str, np.ndarray], float]:
    """Seconds ``[1, rounds]`` of ours and of the others, each with its fastest layout; and the largest difference."""
    ways = {"ours": case.ours(), "mask": fastest(case.mask()), "copy": fastest(case.copy())}
    outputs = {name: attend().float() for name, attend in ways.items()}
    difference = max(float((outputs["ours"] - outputs[name]).abs().max()) for name in ("mask", "copy"))
    repeats = {name: 1 + int(LEAST_SECONDS / seconds(attend)) for name, attend in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(rounds):
        for name in names[turn % 3 :] + names[: turn % 3]:
            found[name].append(seconds(ways[name], repeats[name]))
    return {name: np.array([times]) for name, times in found.items()}, difference


def fastest(ways: dict[str, Attend]) -> Attend:
    """The layout with the shortest time of some tries. The first round warms up."""
    times = {name: [seconds(attend) for _ in range(4)][1:] for name, attend in ways.items()}
    return ways[min(times, key=lambda name: min(times[name]))]


def measure(device: str, dtype: str, rounds: int, quick: bool) -> dict[str, Any]:
    """The figures of this benchmark."""
    figures: dict[str, Any] = {}
    best_other: dict[str, float] = {}
    differences, skipped = [], []
    for kind, (heads, prefixes, branches) in (QUICK if quick else SIZES).items():
        for prefix, count in product(prefixes, branches):
            size = f"{prefix}x{count}"
            if copy_bytes(heads, prefix, count, getattr(torch, dtype).itemsize) > MOST_BYTES:
                skipped.append(kind + size)
                continue
            case = AttentionCase(heads, prefix, count, torch.device(device), getattr(torch, dtype))
            times, difference = compare(case, rounds)
            differences.append(difference)
            for other in ("mask", "copy"):
                figures |= ratio(f"{kind}over_{other}.{size}", times[other], times["ours"])
            figures[f"{kind}microseconds.{size}"] = round(1e6 * float(np.median(times["ours"])), 1)
            best_other[kind + size] = min(figures[f"{kind}over_{other}.{size}"] for other in ("mask", "copy"))
    worst = min(best_other, key=lambda size: best_other[size])
    summary = {"over_best_other_min": best_other[worst], "over_best_other_min.at": worst}
    return summary | figures | {"max_difference": max(differences), "skipped": ", ".join(skipped) or "none"}


def main(
    quick: Quick = False,
    device: Annotated[str, typer.Option(help="a torch device")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16")] = "float32",
    rounds: Annotated[int, typer.Option(min=1, help="number of measurements of each size")] = ROUNDS,
) -> Report:
    """Compare the three methods at every size."""
    return Report(measure(device, dtype, rounds, quick), {"device": device, "dtype": dtype})
