"""Measures how leaving out the KV of single thoughts changes the answers of a search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rksc_tot.api.outcomes import has_check
from rksc_tot.api.setup import Setup
from rksc_tot.core.task import Path, Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.transformers_engine.engine import TransformersEngine
from rksc_tot.engine.transformers_engine.handle import KVHandle
from rksc_tot.evaluation.arborkv.ablated_paths import copies_without
from rksc_tot.search import Search
from rksc_tot.search.task_calls import accept_thought, read_answer, read_verdict, validated, vote_of
from rksc_tot.search.thoughts.thought_generator import CandidateThought


class Sample(NamedTuple):
    """A thought that was left out: its features (NaN if unknown), and whether the outcome changed."""

    value: float
    entropy: float
    attention: float
    changed: bool


class Tip(NamedTuple):
    """A node with complete children. ``k``: number of branches to generate so that all of these are generated again."""

    node: Node
    k: int


async def samples_of(setup: Setup, engine: TransformersEngine, problem: Any) -> list[Sample]:
    """Search a problem on the full KV, then generate its answers again without the KV of one thought, for each thought.

    For every node with complete children and every thought on its path, the children are generated again with the same random
    streams: once on the full KV, and once without the KV of that thought except its last token, from which the next thought
    starts. The outcome is whether one of the answers is right; for a task without a check, it is the commonest answer.
    """
    valid = validated(setup.task, problem)
    search = Search(setup.task, valid, engine, setup.verifier_for(valid), seed=setup.seed)
    try:
        await setup.strategy.run(search)
        engine.engine_thread.empty_inbox()
        found = []
        for tip in tips_of(search):
            found += await _samples_at(search, engine, tip)
        return found
    finally:
        search.close()
        engine.clear()


def tips_of(search: Search) -> list[Tip]:
    """Nodes below the root with complete children, in the order of the tree, if their whole path has handles."""
    draws: dict[int, int] = {}
    for node in search.tree:
        number = node.branch.rpartition(".")[2]
        if node.finished and node.parent and number.isdecimal():  # generated in the first round, and not after the root
            draws[node.parent] = max(draws.get(node.parent, 0), int(number) + 1)
    tips = [Tip(search.tree[id], k) for id, k in sorted(draws.items())]
    return [tip for tip in tips if all(node._handle is not None for node in search.tree.lineage(tip.node))]


async def _samples_at(search: Search, engine: TransformersEngine, tip: Tip) -> list[Sample]:
    handles: list[KVHandle] = [node._handle for node in search.tree.lineage(tip.node)]
    nodes = search.tree.lineage(tip.node)[1:]
    spans = [range(above.length, own.length) for above, own in pairwise(handles)]
    features = [_features(engine, node, span, handles[-1]) for node, span in zip(nodes, spans, strict=True)]
    gaps = [range(0), *(span[:-1] for span in spans)]
    path = search.path(tip.node)
    async with copies_without(engine, [(handles[-1], gap) for gap in gaps]) as copies:
        stand_ins = [tip.node.model_copy() for _ in copies]
        for stand_in, copy in zip(stand_ins, copies, strict=True):
            stand_in._handle = copy
        candidates, _ = await search.expander.generator.generate(
            [(one, path, tip.k) for one in stand_ins], temperature=None, round=0
        )
        for candidate in candidates:
            if candidate.handle is not None:
                engine.release(candidate.handle)
    full, *others = (
        answers_of(
            search.task, search.problem, path, [candidate for candidate in candidates if candidate.parent is one]
        )
        for one in stand_ins
    )
    if not full:
        return []
    usual = outcome(search.task, search.problem, full)
    return [
        Sample(*known, outcome(search.task, search.problem, answers) != usual)
        for known, answers in zip(features, others, strict=True)
    ]


def _features(engine: TransformersEngine, node: Node, span: range, tip: KVHandle) -> tuple[float, float, float]:
    """Search value, entropy and attention of a thought, as in a :class:`ThoughtBlock`; NaN if unknown."""
    observed, end = engine.forward.arena.attention_stats, node._handle.segment
    slots = [slot for segment in tip.segment.lineage() for slot in segment.read(span.start, span.stop)[0]]
    return (
        math.nan if node.score is None else node.score,
        math.nan if end.entropy is None else end.entropy,
        math.nan if observed is None else observed.share(slots),
    )


def answers_of(task: Task, problem: Any, path: Path, candidates: Sequence[CandidateThought]) -> Counter[str]:
    """The answers among the candidates after a path, each with the number of its branches."""
    answers: Counter[str] = Counter()
    for candidate in candidates:
        found = candidate.fault or accept_thought(
            task, problem, path, candidate.text, candidate.finish, candidate.around
        )
        if not isinstance(found, str) and found.finished:
            answer, _ = read_answer(task, problem, found.path)
            if answer is not None:
                answers[answer] += candidate.count
    return answers


def outcome(task: Task, problem: Any, answers: Counter[str]) -> Hashable:
    """Whether one of the answers is right; for a task without a check, the commonest vote, None without answers."""
    if has_check(task):
        return any(read_verdict(task, problem, answer)[0] is True for answer in answers)
    votes: Counter[Hashable] = Counter()
    for answer, count in answers.items():
        votes[vote_of(task, answer)] += count
    return max(votes, key=lambda vote: (votes[vote], str(vote)), default=None)
