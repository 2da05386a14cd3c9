"""The ``rksc-tot`` command."""

from rksc_tot.cli.start import main

__all__ = ["main"]
