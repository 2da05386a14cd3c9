"""Checks whether a task and its model agree on thinking blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rksc_tot.api.check.findings import Findings
from rksc_tot.core.errors import RkscTotError
from rksc_tot.core.task import Path, Prompt, Task, Thinking
from rksc_tot.engine.base import Completion, Engine, ThinkingEngine
from rksc_tot.search import Search
from rksc_tot.search.thoughts.thought_generator import CandidateThought


async def thoughts_with_blocks(task: Task, problem: Any, engine: Engine, k: int) -> list[CandidateThought]:
    """Sampled thoughts after the root, with their thinking blocks; without handles."""
    from rksc_tot.verifiers import Likelihood

    search = Search(task, problem, engine, Likelihood())
    try:
        wanted = [(search.root, Path(), k)]
        candidates, _ = await search.expander.generator.generate(wanted, temperature=None, round=0)
        for candidate in candidates:
            if candidate.handle is not None:
                engine.release(candidate.handle)
        return candidates
    finally:
        search.close()


def as_completions(candidates: Sequence[CandidateThought]) -> list[Completion]:
    """The texts of candidates as completions."""
    return [Completion(c.text, c.tokens, c.logprobs, c.finish, tuple(range(c.count)), None) for c in candidates]


def report_blocks(found: Findings, thinking: Thinking, candidates: Sequence[CandidateThought]) -> None:
    """Report how many sampled blocks the model closed itself."""
    total = sum(candidate.count for candidate in candidates)
    closed = sum(c.count for c in candidates if not (c.block.forced or c.block.still_open))
    steps = sum(candidate.count for candidate in candidates if candidate.block.still_open)
    texts = tuple(f"{c.block.text} ({'closed by force' if c.block.forced else 'thinking'})" for c in candidates)
    if total and not closed and not steps:
        none = f"the model closed none of {total} sampled thinking blocks within {thinking.budget} tokens"
        advice = "raise the budget, or set thinking to None if the model does not think"
        found.report("missing", "thinking", f"{none}: {advice}", texts)
    else:
        still = f", {steps} go on" if steps else ""
        found.report("ok", "thinking", f"the model closed {closed} of {total} sampled thinking blocks{still}", texts)


def report_unasked(found: Findings, engine: Engine, prompt: Prompt, texts: Sequence[str]) -> None:
    """Report a model that thinks although the task has no ``thinking``."""
    if not isinstance(engine, ThinkingEngine):
        return
    try:
        form = engine.thinking_format(prompt, None)
    except RkscTotError:  # no markers: the model does not think
        return
    if form.opens or any(form.opener in text or form.closer in text for text in texts):
        does = "the prompt opens" if form.opens else "the model writes"
        found.report(
            "missing",
            "thinking",
            f"{does} a thinking block {form.opener}...{form.closer}, and the task has no thinking: set it, such as "
            f"Thinking(budget={Thinking().budget})",
        )
