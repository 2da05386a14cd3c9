"""What verifiers share that ask a model in words: the form of a question, candidates on one line, replies on scratch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rksc_tot.core.errors import ContextOverflow
from rksc_tot.core.task import Prompt
from rksc_tot.core.tree import Node
from rksc_tot.engine.base import Completion
from rksc_tot.search import Search
from rksc_tot.verifiers.base import each_fitting

NOTHING = "(the text ends here)"
_UNPRINTABLE = re.compile(r"[^\S ]|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def asked(search: Search, text: str) -> Prompt:
    """A question in the form of the search's prompt: a string, or the user's next turn."""
    return text if isinstance(search.prompt, str) else [{"role": "user", "content": text.strip()}]


def one_line(text: str, longest: int) -> str:
    """A text of a model on one line of at most ``longest`` characters, without control characters."""
    line = " ".join(_UNPRINTABLE.sub(" ", text[: 4 * longest]).split()) or NOTHING
    return line if len(line) <= longest else line[:longest] + " …"


def continuation(search: Search, shared: Node, node: Node, longest: int) -> str:
    """The thoughts of ``node`` after ``shared``, on one line."""
    return one_line(" / ".join(thought.full_text for thought in search.path(node)[shared.depth :]), longest)


def common_ancestor(search: Search, nodes: Sequence[Node]) -> Node:
    """The deepest common ancestor of nodes that still has a handle; of one node, its parent."""
    lineages = [search.tree.lineage(node)[:-1] or [node] for node in nodes]
    shared = search.root
    for level in zip(*lineages, strict=False):
        if any(node.id != level[0].id for node in level):
            break
        if level[0]._handle is not None:
            shared = level[0]
    return shared


async def write_replies(
    search: Search, nodes: Sequence[Node], texts: Sequence[Prompt], max_tokens: int, stop: Sequence[str] = ()
) -> list[Completion | ContextOverflow | None]:
    """A reply after each node and its text; None if a budget cut it off. See :meth:`Search.write`."""

    async def write(some: Sequence[int]) -> Sequence[Completion | None]:
        return await search.write(
            [nodes[at] for at in some], [texts[at] for at in some], max_tokens=max_tokens, stop=stop
        )

    return await each_fitting(write, len(nodes))
