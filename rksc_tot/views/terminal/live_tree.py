"""A live view of the tree: the best path and the frontier are shown, all other nodes are counted."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from rksc_tot.core.events import Event
from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.views.terminal.pace import Pace
from rksc_tot.views.terminal.tree_model import NodeView, TreeView

TALLEST = 40  # most lines of a tree in a file or a pipe
GUIDE = 4  # columns of indentation a level
NARROWEST = 20  # least columns for a thought; deeper nodes are folded


class LiveTree:
    """Shows a search: ``with LiveTree("4 5 6 10") as live: live.update(event)``.

    On a terminal the tree is redrawn in place, at most ``fps`` times a second. Elsewhere it is written once, at the end. All
    information is in words and signs, never in colour alone.

    Parameters
    ----------
    title : str
        Text of the root.
    console : rich.console.Console, optional
        The console to write to.
    fps : float
        Most redraws a second.
    redraw : bool
        False: write the tree once, at the end, also on a terminal.
    """

    def __init__(
        self,
        title: str,
        *,
        console: Console | None = None,
        fps: float = 8,
        redraw: bool = True,
    ) -> None:
        self.title = title
        self.view = TreeView()
        self.console = console or Console()
        self._redraws = redraw and self.console.is_terminal
        self._pace = Pace(1 / fps)
        self._live = Live(self, console=self.console, auto_refresh=False, transient=False)

    def __enter__(self) -> LiveTree:
        if self._redraws:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._redraws:
            self._live.refresh()
            self._live.stop()
        elif len(self.view.nodes) > 1:
            self.console.print(self)

    def update(self, event: Event) -> None:
        """Apply one event, and redraw if the last redraw is long enough ago."""
        self.view.apply(event)
        if self._redraws and self._pace.due():
            self._live.refresh()

    def set_best(self, best: int) -> None:
        """Mark the path of the node that the search has chosen."""
        self.view.set_best(best)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        height = (options.height or console.height) - 5 if self._redraws else TALLEST
        signs = _ASCII if options.ascii_only else _SIGNS
        opened = self.view.open_nodes(max(5, height // 2))
        best = set(self.view.lineage(self.view.best))
        tree = Tree(plain(self.title, "bold"), guide_style="dim")
        self._grow(tree, 0, opened, best, signs, options.max_width)
        yield tree
        yield _legend(signs, self.view)
        yield _status(self.view, signs)

    def _grow(self, tree: Tree, id: int, opened: set[int], best: set[int], signs: dict[str, Any], width: int) -> None:
        width -= GUIDE
        if width < NARROWEST:
            opened = set()
        for child in self.view.children[id]:
            if child in opened:
                branch = tree.add(_line(self.view.nodes[child], child in best, signs, width))
                self._grow(branch, child, opened, best, signs, width)
        hidden = self.view.folded(id, opened)
        if hidden:
            kinds = (f"{hidden[kind]} {kind}" for kind in ("pruned", "rejected", "merged") if hidden[kind])
            folded = [f"{hidden['nodes']} folded"] if hidden["nodes"] else []
            tree.add(Text(f"{signs['more']} {', '.join([*folded, *kinds])}", style="dim", no_wrap=True))


_SIGNS: dict[str, Any] = {
    "best": "▶ ",
    "times": "×",
    "done": "●",
    "cut": "✗",
    "more": "…",
    "about": "≈",
    "asked": "? ",
    "seen": "⇒",
    "long": "ellipsis",
}
_ASCII: dict[str, Any] = {
    "best": "> ",
    "times": "x",
    "done": "=",
    "cut": "pruned:",
    "more": "...",
    "about": "~",
    "asked": "? ",
    "seen": "=>",
    "long": "crop",
}


def _line(node: NodeView, on_best_path: bool, signs: dict[str, Any], width: int) -> Text:
    """The line of a node: ``▶ thought ⇒ observation  score ×count ● answer``. A long thought is cut to fit the width.

    ``?`` marks the reply to a closing. ``≈`` marks a thought that was generated, or a score that was read, from approximate KV.
    """
    rest = Text("" if node.exact else f" {signs['about']}")
    if node.score is not None:
        rest.append(f"  {'' if node.score_exact else signs['about']}{node.score:.3g}", style="cyan")
    if node.count > 1:
        rest.append(f"  {signs['times']}{node.count}", style="dim")
    if node.answer is not None:
        rest.append(f"  {signs['done']} {one_line(node.answer)}", style="bold")
    if node.pruned:
        rest.append(f"  {signs['cut']} {one_line(node.pruned)}", style="red")
    text = one_line(node.text) or "(empty)"
    if node.observation is not None:
        text += f" {signs['seen']} {one_line(node.observation)}"
    marks = (signs["best"] if on_best_path else "") + (signs["asked"] if node.closing is not None else "")
    thought = Text(marks + text)
    thought.truncate(max(NARROWEST // 2, width - rest.cell_len), overflow=signs["long"])
    style = "bold green" if on_best_path else "dim" if node.pruned else ""
    line = Text(no_wrap=True, overflow=signs["long"], style=style)
    return line.append_text(thought).append_text(rest)


def _legend(signs: dict[str, Any], view: TreeView) -> Text:
    meanings = [
        f"{signs['best'].strip()} best path",
        *([f"{signs['about']} on approximate KV"] if view.approximate else []),
        *([f"{signs['asked'].strip()} reply to the closing"] if "closing" in view.added else []),
        *([f"{signs['seen']} observation"] if "observation" in view.added else []),
        f"{signs['done']} answer",
        f"{signs['times']}2 reached twice",
        "pruned: dropped by the search",
        f"{signs['more']} not shown",
    ]
    return Text("   ".join(meanings), style="dim", no_wrap=True, overflow=signs["long"])


def _status(view: TreeView, signs: dict[str, Any]) -> Text:
    parts = [f"{view.totals[kind]} {kind}" for kind in ("nodes", "pruned", "merged", "rejected")]
    if view.stopped:
        parts.append(f"stopped: {one_line(view.stopped)}")
    return Text(", ".join(parts), style="dim", no_wrap=True, overflow=signs["long"])


def plain(text: str, style: str = "") -> Text:
    """A rich text of ``text`` on one line, without markup; a long line ends in an ellipsis."""
    return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")
