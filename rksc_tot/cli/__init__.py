"""The ``rksc-tot`` command."""

from rksc_tot.cli.main import main

__all__ = ["main"]
