"""Runs a command in this process."""

from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import FAILED

PUZZLE = "4 5 6 10"


def run(*args):
    return CliRunner().invoke(cli.app, [*args])


def assert_one_sentence(result, code=FAILED):
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return result.stderr
