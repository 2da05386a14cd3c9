"""One search on one problem: what a strategy may do, and what stands behind it."""

from rksc_tot.search.search import Search

__all__ = ["Search"]
