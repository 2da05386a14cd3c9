"""Views of a search: built on its events, or on its result, and on nothing else."""

from rksc_tot.views.terminal.live_tree import LiveTree
from rksc_tot.views.terminal.report import report
from rksc_tot.views.terminal.tree_model import TreeView

__all__ = ["LiveTree", "TreeView", "report"]
