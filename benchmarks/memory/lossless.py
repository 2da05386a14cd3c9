"""Lossless drafts on compressed KV, verified on full KV: equality of output, accepted drafts, and memory.

Two kinds of work run under every policy: searches with long thoughts (`thoughts`), whose trees are compared node by node, and
chains of the embedded model, sampled and greedy. Each runs once with ample room, to count passes, and once within a quarter of
the KV of full retention, with the offload tier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.common.engine_recorder import EngineRecorder
from benchmarks.common.workers import Workers
from benchmarks.memory import thoughts as pressure_thoughts
from rksc_tot import RKSC, Ledger, load_engine, solve
from rksc_tot.core.errors import CacheError
from rksc_tot.core.seeds import stream_keys
from rksc_tot.engine.base import Account, GenerateRequest, Sampling
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.base import CompressionPolicy
from rksc_tot.policies.compression.lossless import Lossless
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.snapkv import SnapKV
from rksc_tot.policies.compression.streaming_llm import Streaming

SHARE = 4  # KV of full retention over the budget
SAMPLED, NEW = 8, 48  # branches and tokens of a chain
PATHS = {
    "searches": {"budget": 32, "recent": 16},
    "chains": {"budget": 12, "recent": 4},
}
POLICIES = ("random_attention", "random_attention_one_set", "snapkv", "streaming", "arborkv", "identity")
"""``identity``: a budget above the length of all paths."""


class DraftedWork(NamedTuple):
    """The output of some work, and its cost. ``branches``: number of branches. ``tokens``: their tokens."""

    out: list[Any]
    branches: int
    tokens: int
    ledgers: list[Ledger]
    passes: int
    full_passes: int
    overruns: int
    held: int


def policy(name: str, work: str) -> CompressionPolicy:
    """A policy with a budget that is too small for that work."""
    settings: dict[str, Any] = dict(PATHS[work])
    if name == "arborkv":
        return ArborKV(tail=2)
    if name == "identity":
        return RandomAttention(budget=4096)
    if name == "random_attention_one_set":
        settings["sets"] = "one"
    kinds: dict[str, type[RandomAttention | SnapKV | Streaming]] = {"snapkv": SnapKV, "streaming": Streaming}
    return kinds.get(name, RandomAttention)(**settings)


def carry_out(
    work: str, problems: Sequence[str], keep: CompressionPolicy | None, bytes_of_kv: int | None
) -> DraftedWork:
    """Run all work, with a drafting policy or without one."""
    options: dict[str, Any] = {} if bytes_of_kv is None else {"kv_budget": bytes_of_kv, "offload": "cpu"}
    if keep is not None:
        options |= {"compress": keep, "lossless": Lossless()}
    make = pressure_thoughts.engine if work == "searches" else load_engine
    with make(**options) as engine:
        recorder = EngineRecorder(engine)
        out, branches, tokens, ledgers = (searches if work == "searches" else chains)(engine, problems)
        return DraftedWork(
            out, branches, tokens, ledgers, recorder.passes, recorder.full_passes, recorder.overruns, recorder.held
        )


def searches(engine: TransformersEngine, problems: Sequence[str]) -> tuple[list[Any], int, int, list[Ledger]]:
    """Trees of long thoughts."""
    trees, ledgers = [], []
    branches = 0
    for problem in problems:
        engine.clear()
        result = solve(
            pressure_thoughts.LongThoughts(), problem, engine=engine, strategy=pressure_thoughts.STRATEGY,
            verifier=pressure_thoughts.by_chance(), rksc=RKSC(audit=0),
        )  # fmt: skip
        trees.append(result.tree.to_records())
        branches += sum(node.count for node in result.tree if node.depth)
        ledgers.append(result.ledger)
    return trees, branches, sum(ledger.tokens_sampled for ledger in ledgers), ledgers


def chains(engine: TransformersEngine, problems: Sequence[str]) -> tuple[list[Any], int, int, list[Ledger]]:
    """For each puzzle, some sampled branches and a greedy one, from the first step to the end of the text."""
    account = Account()
    requests = [
        GenerateRequest(
            engine.open(f"solve {problem}\n", account), stream_keys(range(count), problem, heat),
            Sampling(temperature=heat), NEW,
        )
        for problem in problems
        for heat, count in ((1.5, SAMPLED), (0.0, 1))
    ]  # fmt: skip
    replies = asyncio.run(engine.generate(requests, account))
    out = [[(c.text, c.tokens, c.logprobs, c.finish, c.branches, c.exact) for c in reply] for reply in replies]
    branches = sum(len(request.streams) for request in requests)
    return out, branches, account.ledger.tokens_sampled, [account.ledger]


def compared(name: str, work: str, problems: Sequence[str]) -> dict[str, Any]:
    """One policy on one kind of work."""
    full = carry_out(work, problems, None, None)
    roomy = carry_out(work, problems, policy(name, work), None)
    tight = carry_out(work, problems, policy(name, work), full.held // SHARE)
    verified = [ledger.verified for ledger in roomy.ledgers]
    squeezed = [ledger.verified for ledger in tight.ledgers]
    return {
        "identical": roomy.out == full.out == tight.out,
        "branches": full.branches,
        "drafted": sum(v.drafted for v in verified), "accepted": sum(v.accepted for v in verified),
        "drafted_tight": sum(v.drafted for v in squeezed), "accepted_tight": sum(v.accepted for v in squeezed),
        "balanced": all(v.drafted == v.accepted + v.rejected for v in (*verified, *squeezed)),
        "full_passes": roomy.full_passes, "plain_passes": full.passes, "passes": roomy.passes,
        "overruns": tight.overruns, "budget": full.held // SHARE, "held": tight.held,
        "restored": sum(ledger.restored_tokens for ledger in tight.ledgers),
    }  # fmt: skip


def figures(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    """The figures of all work; ``found`` by policy and kind of work."""
    names = dict.fromkeys(name for name, _ in found)
    by_policy = {name: [each for (policy, _), each in found.items() if policy == name] for name in names}

    def share(name: str, part: str, whole: str) -> float:
        of = sum(each[whole] for each in by_policy[name])
        return round(sum(each[part] for each in by_policy[name]) / of, 4) if of else 0.0

    return {
        "lossless_identical": all(each["identical"] for each in found.values()),
        "drafted_is_accepted_and_rejected": all(each["balanced"] for each in found.values()),
        "branches": min(sum(each["branches"] for each in by_policy[name]) for name in names),
        "overruns": sum(each["overruns"] for each in found.values()),
        "acceptance": {name: share(name, "accepted", "drafted") for name in names},
        "acceptance_tight": {name: share(name, "accepted_tight", "drafted_tight") for name in names},
        "passes_saved": {name: round(1 - share(name, "full_passes", "plain_passes"), 4) for name in names},
        "passes_in_all": {name: share(name, "passes", "plain_passes") for name in names},
        "restored_tokens": {name: sum(each["restored"] for each in by_policy[name]) for name in names},
    }


WAYS: dict[str, dict[str, Any]] = {
    "nothing": {"eviction": "none"},
    "eviction": {},
    "arborkv": {"compress": ArborKV()},
    "arborkv_offload": {"compress": ArborKV(), "offload": "cpu"},
    "lossless_offload": {"compress": policy("random_attention", "searches"), "lossless": True, "offload": "cpu"},
}
"""Settings that fit a search into a budget. ``nothing``: only pruned thoughts are dropped."""


def within(problem: str, workers: Workers) -> dict[str, Any]:
    """A search that needs four times the budget, under each of these settings."""
    [(wanted, needs)] = workers.each(alone, [(problem, {})])
    budget = int(needs["held_bytes"]) // SHARE
    found = workers.each(alone, [(problem, options | {"kv_budget": budget}) for options in WAYS.values()])
    ways = {name: each | {"same_tree": tree == wanted} for name, (tree, each) in zip(WAYS, found, strict=True)}
    helped = [each for name, each in ways.items() if name != "nothing"]
    return {
        "needs_bytes": needs["held_bytes"],
        "needs": needs,
        "budget_bytes": budget,
        "within": ways,
        "finished_within": all(each["finished"] and each["same_tree"] and not each["overruns"] for each in helped),
        "finished_without": ways["nothing"]["finished"],
    }


def alone(problem: str, options: dict[str, Any]) -> tuple[object, dict[str, Any]]:
    """The tree and the bytes of one search, alone on its engine."""
    with pressure_thoughts.engine(**options) as engine:
        recorder = EngineRecorder(engine)
        finished, tree, ledger = True, None, Ledger()
        try:
            [tree], _, _, [ledger] = searches(engine, [problem])
        except CacheError:
            finished = False
        return tree, {
            "finished": finished, "held_bytes": recorder.held, "allocated_bytes": recorder.allocated,
            "growing_bytes": recorder.growing, "overruns": recorder.overruns,
            "recomputed_tokens": ledger.recomputed_tokens, "restored_tokens": ledger.restored_tokens,
        }  # fmt: skip
