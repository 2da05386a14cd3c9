"""Views of a search: built on its events, or on its result, and on nothing else."""

from rksc_tot.show.live import LiveTree
from rksc_tot.show.report import report
from rksc_tot.show.view import TreeView

__all__ = ["LiveTree", "TreeView", "report"]
