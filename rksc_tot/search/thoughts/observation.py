"""Asks a task what follows its new thoughts: ``Task.observe``, the tools and environments of a search."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rksc_tot.core.plugins.bounded_call import BoundedCall
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, plain_str, shown
from rksc_tot.core.task import Path, Task, Thought
from rksc_tot.core.task.end_of_thought import accepts_truncated, boundary_of
from rksc_tot.core.task.task_settings import text_fault
from rksc_tot.core.tree import Node, ReasoningTree
from rksc_tot.search.limits import Limits
from rksc_tot.search.task_calls import END, parse_thought
from rksc_tot.search.thoughts.thought_generator import CUT_BY_BUDGET, CandidateThought
from rksc_tot.search.validation import Fault

CONCURRENCY = 16  # most calls of observe at the same time

Key = tuple[int, str]  # the parent's id and the text of a thought


class Observer:
    """Parses candidate thoughts and adds what ``task.observe`` says after them. Does nothing for a task without it.

    States are kept by value: parse and observe get copies of all states on the path, and each attempt of observe gets its own.

    Parameters
    ----------
    task, problem, tree, limits
        Of the search.
    """

    def __init__(self, task: Task, problem: Any, tree: ReasoningTree, limits: Limits) -> None:
        self._task, self._problem, self._tree, self._limits = task, problem, tree, limits
        self.on = observes(task)

    async def observe(self, candidates: Sequence[CandidateThought]) -> list[CandidateThought]:
        """The candidates with their parsed thoughts and observations. All are observed at once; equal siblings share one call."""
        if not self.on:
            return list(candidates)
        parsed = [self._parsed(candidate) for candidate in candidates]
        new = [self._new_thought(candidate) for candidate in parsed]
        paths: dict[Key, Path] = {}
        for candidate, thought in zip(parsed, new, strict=True):
            if thought is not None:
                paths.setdefault((candidate.parent.id, thought.text), Path((*candidate.path, thought)))
        gate = asyncio.Semaphore(CONCURRENCY)
        call = observe_call(self._task, lambda: self._limits.seconds_left)

        async def ask(path: Path) -> Thought | str:
            async with gate:
                return await observed(call, self._task, self._problem, path)

        found = dict(zip(paths, await asyncio.gather(*map(ask, paths.values())), strict=True))
        if CUT_BY_BUDGET in found.values():
            self._limits.cut_short()
        return [
            candidate if thought is None else replace(candidate, parsed=found[candidate.parent.id, thought.text])
            for candidate, thought in zip(parsed, new, strict=True)
        ]

    def _parsed(self, candidate: CandidateThought) -> CandidateThought:
        """The candidate with its thought, or with why it is rejected; a thought that repeats a sibling with its observation."""
        if candidate.fault is not None or candidate.closing is not None:
            return candidate
        try:
            path = copied(candidate.path)
        except UserCodeError as raised:
            return replace(candidate, parsed=Fault(raised))
        thought = parse_thought(self._task, self._problem, path, candidate.text, candidate.finish, candidate.around)
        known = None if isinstance(thought, str) else self._sibling(candidate.parent, thought)
        return replace(candidate, parsed=thought if known is None else known.thought)

    def _sibling(self, parent: Node, thought: Thought) -> Node | None:
        """The child of ``parent`` that says the same; not for the mere end of the text, nor the reply to a closing."""
        if thought is END:
            return None
        children = (child for child in self._tree.children(parent) if child.closing is None)
        return next((child for child in children if child.text == thought.text), None)

    def _new_thought(self, candidate: CandidateThought) -> Thought | None:
        """The thought of a candidate, if it is a whole one that no sibling has."""
        thought = candidate.parsed
        if thought is None or isinstance(thought, str) or thought is END:
            return None
        if candidate.finish == "length" and not accepts_truncated(self._task):
            return None
        return thought if self._sibling(candidate.parent, thought) is None else None


def observes(task: Task) -> bool:
    """Whether a task has a method ``observe`` of its own."""
    return getattr(task.observe, "__func__", None) is not Task.observe


def observe_call(task: Task, seconds_left: Callable[[], float | None]) -> BoundedCall:
    """How ``task.observe`` is called."""
    return BoundedCall("observe", task.observe_timeout, task.observe_attempts, seconds_left)


async def observed(call: BoundedCall, task: Task, problem: Any, path: Path) -> Thought | str:
    """The last thought of a path, with its observation and state; or why there is none (a Fault if ``observe`` failed)."""
    try:
        said, (_, own) = await call(task.observe, lambda: (problem, copied(path)))
    except UserCodeError as raised:
        return Fault(raised)
    except TimeoutError:
        return (
            CUT_BY_BUDGET if call.late else f"no observation within {task.observe_timeout:g} s - raise observe_timeout"
        )
    if said is not None and not isinstance(said, str):
        return Fault(f"observe returned {shown(said)}, not a text or None")
    said = None if said is None else plain_str(said)
    if said and len(said) > task.observe_chars:
        return f"the observation has {len(said)} characters, observe_chars is {task.observe_chars} - shorten it, or raise that"
    if said and (fault := text_fault(said)):
        return f"the observation {fault}"
    if not said:
        return replace(path[-1], state=own.state, observation=None)
    ending = boundary_of(task).ending if path.finish == "length" else path[-1].ending  # as in text_on_path
    return replace(path[-1], state=own.state, observation=said, ending=ending)


def copied(path: Path) -> Path:
    """A path with copies of its states. Raises UserCodeError if a state cannot be copied."""
    with calling_user_code("copying a state"):
        states = copy.deepcopy([thought.state for thought in path])
        return Path(replace(thought, state=state) for thought, state in zip(path, states, strict=True))


def text_on_path(candidate: CandidateThought, observation: str) -> str:
    """The text that an observation adds to the path: it stands between the ends of thoughts."""
    ending = candidate.ending
    before = ending if candidate.finish == "length" else ""  # nothing has ended the thought
    return before + (observation if observation.endswith(ending) else observation + ending)
