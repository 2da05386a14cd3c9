"""One long path on the hand-written model of `recall`: which facts are still known at the end, by how often they are stated.

The model generates some 300 tokens and is then asked for six facts: one of the prompt that was never read before, one stated once
at the beginning, and four stated again every 16 to 128 lines.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from benchmarks.common.workers import Workers
from benchmarks.memory.recall import RecallLine, Script, line, model, tokenizer
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.evaluation.intervals import wilson
from rksc_tot.policies.compression.base import CompressionPolicy
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming

LINES = 256
EVERY = (16, 32, 64, 128)
KINDS = ("prompt", "once", *(f"every_{n}" for n in EVERY))
DIGITS, STATED = 10, 12
RECENT = 16
BUDGETS = (32, 48, 64, 96)
STRATEGY_SETTINGS = 64
POLICIES: dict[str, tuple[type[RandomAttention | SnapKV | Streaming], dict[str, Any]]] = {
    "random_attention": (RandomAttention, {}),
    "random_attention_one_set": (RandomAttention, {"sets": "one"}),
    "snapkv": (SnapKV, {}),
    "snapkv_kernel1": (SnapKV, {"kernel": 1}),
    "streaming": (Streaming, {}),
}


class Told(NamedTuple):
    """Results under one policy: right answers by kind of fact, and peak tokens of a path."""

    right: dict[str, int]
    of: int
    peak: float

    def shares(self) -> dict[str, float]:
        """Share of right answers for each kind."""
        return {kind: round(right / self.of, 4) for kind, right in self.right.items()}


def script() -> Script:
    """The first lines state facts of the prompt; later lines state facts again when they are due."""
    kept = [f"p{n}" for n in range(STATED)]
    names = [*kept, *KINDS[1:]]
    lines = [RecallLine(), *(RecallLine(kept[n], kind) for n, kind in enumerate(KINDS[1:]))]
    while len(lines) < LINES:
        due = [f"every_{every}" for every in EVERY if len(lines) % every == every // 2]  # never two facts in one line
        lines.append(RecallLine(due[0], due[0]) if due else RecallLine())
    asked = [kept[-1], *KINDS[1:]]
    return Script([*lines, *(RecallLine(name, name) for name in asked), RecallLine()], names, DIGITS)


def write(compress: CompressionPolicy | None, problems: int, **options: Any) -> Told:
    """Generate a path for each problem, all at once, greedily."""
    written, account, rng = script(), Account(), random.Random("long paths")
    last = line(len(written.lines) - 1)
    right = dict.fromkeys(KINDS, 0)
    with TransformersEngine(
        model(written), tokenizer(written), name="written by hand", compress=compress, **options
    ) as engine:
        facts = [[rng.randrange(DIGITS) for _ in range(STATED)] for _ in range(problems)]
        requests = [
            GenerateRequest(
                engine.open(written.prompt({f"p{n}": digit for n, digit in enumerate(digits)}), account),
                stream_keys(range(1), "long path", number), Sampling(temperature=0), 2 * LINES, (last,),
            )
            for number, digits in enumerate(facts)
        ]  # fmt: skip
        replies = asyncio.run(engine.generate(requests, account))
        for digits, [reply] in zip(facts, replies, strict=True):
            told = re.findall(r"=(\S+)", reply.text)[-len(KINDS) :]
            for kind, value, digit in zip(KINDS, told, [digits[-1], *digits], strict=False):
                right[kind] += value == str(digit)
        return Told(right, problems, engine.cache.residency.pool.peak / problems)


def figures(problems: int, budgets: Sequence[int], workers: Workers) -> dict[str, Any]:
    """The figures of all policies at all budgets, with the prompt pinned or not."""
    which = list(product(POLICIES, budgets, (True, False)))
    whole, *told = workers.each(write, [(None, problems), *((policy(*each), problems) for each in which)])
    found: dict[str, Any] = {"full_tokens.paths": whole.peak, "curve.paths.full": _point(whole, whole)}
    for (name, budget, pinned), each in zip(which, told, strict=True):
        found[f"curve.paths.{name if pinned else f'{name}_unpinned'}.{budget}"] = _point(each, whole)
        if budget == STRATEGY_SETTINGS:
            found[f"recall.{name}.{'pinned' if pinned else 'unpinned'}"] = each.shares()
    return found


def policy(name: str, budget: int, pinned: bool) -> CompressionPolicy:
    """A policy by its name in the figures."""
    kind, settings = POLICIES[name]
    return kind(budget=budget, recent=RECENT, pin_prompt=pinned, **settings)


def _point(told: Told, whole: Told) -> dict[str, Any]:
    """A point of the curve over all kinds of facts except those stated once."""
    right, asked = sum(told.right[kind] for kind in KINDS if kind != "once"), told.of * (len(KINDS) - 1)
    low, high = wilson(right, asked)
    return {
        "solved": round(right / asked, 4), "solved.low": round(low, 4), "solved.high": round(high, 4),
        "memory": round(told.peak / whole.peak, 4), "once": told.shares()["once"],
    }  # fmt: skip
