"""Where the ``rksc-tot`` command starts: before anything that takes time to import."""

from __future__ import annotations

import sys

from rksc_tot.cli.exits import interrupted


def main() -> None:
    """Run the command; text the terminal cannot encode is replaced, never an error."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        from rksc_tot.cli.commands.app import app

        app()
    except KeyboardInterrupt:
        interrupted()
