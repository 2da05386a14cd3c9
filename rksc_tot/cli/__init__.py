"""The ``rksc-tot`` command."""

from rksc_tot.cli.commands import app, main

__all__ = ["app", "main"]
