"""Padding that keeps pointwise results independent of the batch on the CPU.

torch gives each thread a chunk of the elements. Elements at the end of a chunk that do not fill a vector are computed by other
instructions, with other last bits. If every chunk consists of whole vectors, an element's result depends on the element alone.
"""

from __future__ import annotations

import torch

GRAIN = 32768  # the fewest elements that torch gives to a thread
GELU = 16384  # with more elements than this, GELU uses all threads
VECTOR = 32  # elements, two of the widest vectors


def steady_rows(rows: int, width: int) -> int:
    """The smallest number of rows of ``width`` elements, at least ``rows``, that gives every thread whole vectors."""
    for more in range(rows, rows + VECTOR * torch.get_num_threads()):
        if _whole(more * width):
            return more
    return rows


def in_whole_vectors(elements: int) -> int:
    """The smallest number of elements, at least ``elements``, that gives every thread whole vectors."""
    elements = -(-elements // VECTOR) * VECTOR
    while not _whole(elements):
        elements += VECTOR
    return elements


def _whole(elements: int) -> bool:
    threads = torch.get_num_threads()
    usual = max(1, min(threads, -(-elements // GRAIN)))
    return all(-(-elements // chunks) % VECTOR == 0 for chunks in (usual, threads if elements > GELU else usual))
