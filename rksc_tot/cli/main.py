"""The entry point of the ``rksc-tot`` command. It imports slow modules only after Ctrl-C is handled."""

from __future__ import annotations

import sys

from rksc_tot.cli.exits import interrupted


def main() -> None:
    """Run the command. Characters that the terminal cannot encode are replaced."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        from rksc_tot.cli.commands.app import app

        app()
    except KeyboardInterrupt:
        interrupted()
