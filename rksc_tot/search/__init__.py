"""One search on one problem: the ``Search`` that strategies call, and its parts."""

from rksc_tot.search.search import Search

__all__ = ["Search"]
