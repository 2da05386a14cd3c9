"""Seeds of random programs: the first few in every run, the others under ``-m slow``."""

import pytest


def seeds(usual, all):
    """Parameters ``range(all)``; those from ``usual`` on are slow."""
    return [*range(usual), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(usual, all))]
