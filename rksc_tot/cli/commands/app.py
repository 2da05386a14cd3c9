"""The ``rksc-tot`` command with its subcommands.

Each subcommand imports slow modules when it runs, so that ``--help`` and usage errors are fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from rksc_tot.cli.commands.calibrate import calibrate
from rksc_tot.cli.commands.check import check
from rksc_tot.cli.commands.compare import compare
from rksc_tot.cli.commands.fit import fit
from rksc_tot.cli.commands.lists import policies, strategies, tasks, verifiers
from rksc_tot.cli.commands.run import run
from rksc_tot.cli.commands.solve import solve
from rksc_tot.cli.options.arguments import ProblemCommand, TaskCommand
from rksc_tot.core.version import __version__


def show_version(asked: bool) -> None:
    """Print the version and exit, if ``asked``."""
    if asked:
        print(f"rksc-tot {__version__}")
        raise typer.Exit


app = typer.Typer(
    help="Tree-of-thoughts search on one shared KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Tree-of-thoughts search on one shared KV cache."""


app.command(cls=ProblemCommand)(solve)
app.command(cls=TaskCommand)(run)
app.command(cls=ProblemCommand)(check)
app.command(cls=ProblemCommand)(compare)
app.command(cls=ProblemCommand)(calibrate)
app.add_typer(fit, name="fit")
for listing in (tasks, strategies, verifiers, policies):
    app.command()(listing)
