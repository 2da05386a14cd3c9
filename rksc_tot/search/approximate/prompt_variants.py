"""Prompt variants: the first thoughts of a search start from the prompt and from its variants in turn.

Each variant has a path of its own. With a rule for prompt reuse (ASKS), a variant reuses the KV of the tokens that it has in
common with the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rksc_tot.core.errors import CacheError, ContextOverflow, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Prompt, Task
from rksc_tot.core.task.task_settings import plain_prompt, prompt_fault
from rksc_tot.engine.base import Account, Engine, SharingEngine
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.search.task_calls import HINT


class Start(NamedTuple):
    """A path from which ``branches`` start. ``exact``: False if it has reused KV."""

    handle: Any
    exact: bool
    branches: range


class PromptVariants:
    """The prompt variants of one problem, opened when the root is first expanded.

    Parameters
    ----------
    prompts : list of Prompt
        See :func:`other_variants`.
    rule : PromptReuse, optional
        When reused KV is kept. Without it, no KV is reused.
    engine, account
        Of the search.
    names : tuple
        Seed and problem: the beginning of every random stream's name.
    warn : callable
        Called with topic and message of a warning, if a variant is left out or its reused KV is rejected.
    """

    def __init__(
        self,
        prompts: list[Prompt],
        rule: PromptReuse | None,
        engine: Engine,
        account: Account,
        names: tuple[object, ...],
        warn: Callable[[str, str], None],
    ) -> None:
        self._prompts, self._rule, self._engine, self._account = prompts, rule, engine, account
        self._names, self._warn = names, warn
        self._opened: list[tuple[Any, bool]] = []

    async def assign(self, root: Any, k: int) -> list[Start]:
        """Assign ``k`` branches in turn to the root's handle and the variants."""
        while self._prompts and len(self._opened) < k - 1 and not self._account.late:
            prompt = self._prompts.pop(0)
            try:
                self._opened.append(await self._open(prompt, root))
            except (ContextOverflow, CacheError) as error:
                self._warn("prompt_reuse", f"the prompt variant {shown(prompt)} is left out: {error}")
        starts = [(root, True), *self._opened][:k]
        return [Start(handle, exact, range(n, k, len(starts))) for n, (handle, exact) in enumerate(starts)]

    async def _open(self, prompt: Prompt, root: Any) -> tuple[Any, bool]:
        if self._rule is None or not isinstance(self._engine, SharingEngine):
            return self._engine.open(prompt, self._account), True
        key = stream_key(*self._names, "prompt_reuse", str(prompt))
        handle, verdict = await self._engine.open_variant(prompt, root, self._rule, self._account, key)
        if not verdict.kept:
            self._account.ledger.prompt_reuse.sent_back += 1
            self._warn(
                "prompt_reuse",
                f"a prompt variant reuses only the KV of its common prefix with the prompt: {verdict.why}",
            )
        return handle, not verdict.kept

    def close(self) -> None:
        """Release every handle."""
        while self._opened:
            self._engine.release(self._opened.pop()[0])


def other_variants(task: Task, problem: Any, prompt: Prompt) -> list[Prompt]:
    """The task's ``prompt_variants`` of a problem.

    Raises
    ------
    TaskError
        If the method raises or does not return a list of valid prompts of the same type as ``prompt`` (string or messages).
    """
    try:
        with calling_user_code("prompt_variants"):
            found: Any = task.prompt_variants(problem)
            prompts = None if isinstance(found, str) else list(found)
    except UserCodeError as raised:
        raise TaskError(f"{raised} for {shown(problem)}", hint=HINT) from raised.error
    if prompts is None:
        raise TaskError(f"prompt_variants returned {shown(found)}, not a list of prompts", hint=HINT)
    for other in prompts:
        if fault := prompt_fault(other):
            raise TaskError(f"a prompt variant of {shown(problem)} {fault}", hint=HINT)
        if isinstance(other, str) != isinstance(prompt, str):
            raise TaskError(
                f"the prompt and its variants for {shown(problem)} mix strings and chat messages", hint=HINT
            )
    return [plain_prompt(other) for other in prompts]
