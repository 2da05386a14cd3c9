"""The approximations that are on in one search."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.task import Prompt, Task
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Account, CompressingEngine, Engine, Reader, SharingEngine
from rksc_tot.search.approximate.compression_audit import AUDIT, CompressionAudit
from rksc_tot.search.approximate.early_exit import EarlyExit
from rksc_tot.search.approximate.prompt_variants import PromptVariants, other_variants
from rksc_tot.search.approximate.rksc import RKSC
from rksc_tot.search.approximate.sibling_merging import SiblingMerging


class Approximations:
    """The approximations of one search: one attribute each, None if it is off.

    Parameters
    ----------
    rksc : RKSC, optional
        The settings, checked for the engine, the task and the verifier.
    task, problem, prompt, engine, account
        Of the search.
    reader
        The engine that answers the verifier's label requests.
    names : tuple
        Seed and problem: the beginning of every random stream's name.
    rng : callable
        Returns the random stream of the search with the given name.
    warn : callable
        Called with topic and message of a warning.

    Raises
    ------
    ConfigError
        If prompt reuse is on and the task has no prompt variants.
    TaskError
        If the prompt variants of the task are invalid.
    """

    def __init__(
        self,
        rksc: RKSC | None,
        task: Task,
        problem: Any,
        prompt: Prompt,
        engine: Engine,
        reader: Reader,
        account: Account,
        names: tuple[object, ...],
        rng: Callable[..., random.Random],
        warn: Callable[[str, str], None],
    ) -> None:
        self.reader = reader
        self.early_exit = None if rksc is None else EarlyExit(rksc, reader, account.ledger, rng, warn)
        self.sibling_merging = None
        if rksc is not None and rksc.sibling is not None and isinstance(engine, SharingEngine):
            self.sibling_merging = SiblingMerging(rksc.sibling, rksc.audit, task, problem, engine, account, rng, warn)
        self.compression_audit = None
        if isinstance(engine, CompressingEngine) and engine.compression is not None:
            share = AUDIT if rksc is None else rksc.audit
            self.compression_audit = CompressionAudit(share, engine, account, rng, warn)
        self.prompt_variants = None
        rule = None if rksc is None else rksc.prompt_reuse
        variants = other_variants(task, problem, prompt)
        if rule is not None and not variants:
            raise ConfigError(
                "prompt reuse is on, and the task has no prompt variants", hint="write Task.prompt_variants"
            )
        if variants:
            self.prompt_variants = PromptVariants(variants, rule, engine, account, names, warn)

    async def audit(self, children: Sequence[Node]) -> None:
        """Audit the merges and the new nodes of an expansion."""
        if self.sibling_merging:
            await self.sibling_merging.audit()
        if self.compression_audit:
            await self.compression_audit.audit(children)

    def close(self) -> None:
        """Release every handle."""
        for part in (self.sibling_merging, self.prompt_variants):
            if part:
                part.close()
