"""Views of searches on a terminal, made from events and results only."""

from rksc_tot.views.terminal.live_tree import LiveTree
from rksc_tot.views.terminal.result_report import report
from rksc_tot.views.terminal.tree_model import TreeView

__all__ = ["LiveTree", "TreeView", "report"]
