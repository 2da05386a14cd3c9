"""Full KV in place of reduced: to go on exactly, or to see what the reduction did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from rksc_tot.engine.base import Account
from rksc_tot.engine.jobs.label import Distribution
from rksc_tot.engine.transformers_engine.handle import KVHandle

if TYPE_CHECKING:
    from rksc_tot.cache.prefix_tree import PrefixTree, Segment
    from rksc_tot.engine.transformers_engine.engine import TransformersEngine


class AuditPaths:
    """Where paths are computed on the side: what they have in common once, unless their prompts end elsewhere, since the last
    bits depend on that.
    """

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._origins: dict[int, Segment] = {}  # by where the prompt ends

    def path(self, handle: KVHandle) -> Segment:
        """The end of the path of a handle there, to be held before the next one is asked for."""
        origin = self._origins.setdefault(handle.prompt_end, self._tree.private_root())
        return self._tree.walk(origin, handle.tokens)


async def rehydrate(engine: TransformersEngine, handles: Sequence[KVHandle], account: Account) -> list[bool]:
    """Make paths whole: what was let go of, or computed upon what was left, is computed or copied back. False where the
    deadline came first.
    """
    tree = engine.cache

    def make() -> list[Distribution]:
        for handle in handles:
            for segment in handle.segment.lineage():
                if segment.mixed:
                    tree.rewind(segment)
                    break
            if tree.missing(handle.segment, exact=True):
                handle.segment.logits = None  # they do not tell that the path is whole
        jobs = [Distribution(tree, handle.segment, account).after(handle.prompt_end) for handle in handles]
        for job in jobs:
            job.exact = True
        return jobs

    return [job.result is not None for job in await engine.engine_thread.run(make)]


async def against_full(
    engine: TransformersEngine, handles: Sequence[KVHandle], account: Account
) -> list[tuple[float, bool] | None]:
    """How the next token after paths differs from what it is upon all their KV: KL(full || as it is) in nats, and whether the
    likeliest is the same. None where the deadline came first.

    The full KV is computed on the side, and forgotten.

    Raises
    ------
    CacheError
        If there is no room for that.
    """
    tree = engine.cache

    def make() -> list[Distribution]:
        jobs: list[Distribution] = []
        aside = AuditPaths(tree)
        for handle in handles:
            jobs.append(Distribution(tree, aside.path(handle), account, aside=True).after(handle.prompt_end))
            jobs.append(Distribution(tree, handle.segment, account).after(handle.prompt_end))
        return jobs

    return compared([job.result for job in await engine.engine_thread.run(make)])


def compared(read: Sequence[object]) -> list[tuple[float, bool] | None]:
    """KL of every other of these next-token distributions (log-probabilities ``[V]``) from the one before it, in nats, and
    whether the likeliest token is the same; None where one of them is.
    """
    found: list[tuple[float, bool] | None] = []
    for a, b in zip(read[::2], read[1::2], strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            found.append((float((a.exp() * (a - b)).nansum()), bool(a.argmax() == b.argmax())))
        else:
            found.append(None)
    return found
