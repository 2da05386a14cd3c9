"""Full KV of compressed paths: rehydration, and audits of compression."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rksc_tot.cache.prefix_tree import PrefixTree, Segment
from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.label_question import Distribution
from rksc_tot.engine.scheduler.engine_thread import EngineThread
from rksc_tot.engine.transformers_engine.handle import KVHandle


class AuditPaths:
    """Copies of paths for audit jobs, isolated from all other paths.

    Copies share a common prefix only if their prompts end at the same token, since the last bits of a result depend on the
    end of the prompt.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._origins: dict[int, Segment] = {}  # by the end of the prompt

    def path(self, handle: KVHandle) -> Segment:
        """The segment that ends the copy of a handle's path. Hold it before the next call."""
        origin = self._origins.setdefault(handle.prompt_end, self._tree.private_root())
        return self._tree.walk(origin, handle.tokens)


async def rehydrate(thread: EngineThread, handles: Sequence[KVHandle], account: Account) -> list[bool]:
    """Restore the full KV of paths, in place of compressed KV and of KV computed from compressed KV.

    Returns
    -------
    list of bool
        Whether the KV of each path is full now; False where the deadline came first.
    """
    tree = thread.scheduler.tree

    def make() -> list[Distribution]:
        for handle in handles:
            for segment in handle.segment.lineage():
                if segment.kv.per_head:
                    tree.evictor.evict_subtree(segment)
                    break
            if tree.residency.missing(handle.segment, exact=True):
                handle.segment.logits = None  # known logits do not imply that the KV is full
        jobs = [Distribution(tree, handle.segment, account, handle.prompt_end) for handle in handles]
        for job in jobs:
            job.exact = True
        return jobs

    return [job.result is not None for job in await thread.run(make)]


async def against_full(
    thread: EngineThread, handles: Sequence[KVHandle], account: Account
) -> list[tuple[float, bool] | None]:
    """Measure how compression changes the next token. Full KV is computed on isolated copies and dropped.

    Returns
    -------
    list
        For each path KL(full || compressed) in nats and whether the likeliest token is the same; None where the deadline came
        first.

    Raises
    ------
    CacheError
        If there is no room for the full KV.
    """
    tree = thread.scheduler.tree

    def make() -> list[Distribution]:
        jobs: list[Distribution] = []
        copies = AuditPaths(tree)
        for handle in handles:
            jobs.append(Distribution(tree, copies.path(handle), account, handle.prompt_end, audit=True))
            jobs.append(Distribution(tree, handle.segment, account, handle.prompt_end))
        return jobs

    return compared([job.result for job in await thread.run(make)])


def compared(read: Sequence[object]) -> list[tuple[float, bool] | None]:
    """Compare next-token distributions (log-probabilities ``[V]``) pair by pair: the first with the second, and so on.

    Returns
    -------
    list
        For each pair KL(first || second) in nats and whether the likeliest token is the same; None where one is missing.
    """
    found: list[tuple[float, bool] | None] = []
    for a, b in zip(read[::2], read[1::2], strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            found.append((float((a.exp() * (a - b)).nansum()), bool(a.argmax() == b.argmax())))
        else:
            found.append(None)
    return found
