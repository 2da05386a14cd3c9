"""How torch shares out pointwise work on the CPU, and what to do for the results not to depend on it.

Threads get equal chunks, and the odd elements at the end of a chunk are computed by other instructions than whole vectors, with
other last bits. Where every chunk is whole vectors, an element's result depends on nothing but the element.
"""

from __future__ import annotations

import torch

GRAIN = 32768  # elements torch gives a thread at least
GELU = 16384  # from more elements than this on, GELU is shared out among all threads
VECTOR = 32  # elements, two of the widest vectors


def steady_rows(rows: int, width: int) -> int:
    """The fewest rows of ``width`` elements, from this many on, that fall into chunks of whole vectors."""
    for more in range(rows, rows + VECTOR * torch.get_num_threads()):
        if _whole(more * width):
            return more
    return rows


def in_whole_vectors(elements: int) -> int:
    """The fewest elements, from this many on, that fall into chunks of whole vectors."""
    elements = -(-elements // VECTOR) * VECTOR
    while not _whole(elements):
        elements += VECTOR
    return elements


def _whole(elements: int) -> bool:
    threads = torch.get_num_threads()
    usual = max(1, min(threads, -(-elements // GRAIN)))
    return all(-(-elements // chunks) % VECTOR == 0 for chunks in (usual, threads if elements > GELU else usual))
