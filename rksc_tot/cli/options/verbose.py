"""``--verbose``: writes the log of the package to stderr."""

from __future__ import annotations

import logging
from typing import Annotated

import typer


def log_to_stderr(ctx: typer.Context, asked: bool) -> bool:
    """Write log messages of all levels to stderr until the command has ended."""
    if asked:
        log, handler = logging.getLogger("rksc_tot"), logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        before = log.level
        log.addHandler(handler)
        log.setLevel(logging.DEBUG)

        def stop() -> None:
            log.removeHandler(handler)
            log.setLevel(before)

        ctx.call_on_close(stop)
    return asked


Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", callback=log_to_stderr, is_eager=True, help="Log searches, passes and evictions to stderr."
    ),
]
