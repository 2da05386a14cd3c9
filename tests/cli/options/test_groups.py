"""Options declared once, as the fields of a dataclass that several commands take."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import USAGE
from rksc_tot.cli.options.groups import grouped


@dataclass(frozen=True)
class Base:
    size: Annotated[int, typer.Option(min=1)] = 3


@dataclass(frozen=True)
class Both(Base):
    words: Annotated[list[str] | None, typer.Argument()] = None
    loud: Annotated[bool, typer.Option("--loud")] = False


def called(*args):
    app, found = typer.Typer(), []

    @app.command()
    @grouped
    def command(
        name: Annotated[str, typer.Argument()], both: Both, last: Annotated[str, typer.Option("--end")] = "z"
    ) -> None:
        """What it does."""
        found.append((name, both, last))

    result = CliRunner().invoke(app, [*args])
    return found[0] if found else result


def test_a_command_gets_its_groups_filled_in():
    assert called("a") == ("a", Both(), "z")
    assert called("a", "b", "c", "--size", "5", "--loud", "--end", "y") == ("a", Both(5, ["b", "c"], True), "y")


def test_options_of_a_group_keep_their_help_and_defaults():
    assert called("a", "--size", "0").exit_code == USAGE
    said = " ".join(called("--help").output.split())
    for part in ("What it does.", "--size", "--loud", "--end", "[default: 3]"):
        assert part in said


def test_two_calls_of_a_grouped_command_are_independent():
    assert called("a", "--loud")[1].loud
    assert not called("a")[1].loud


@pytest.mark.parametrize("name", ["solve", "run", "compare"])
def test_the_commands_that_search_have_the_same_engine_options(name):
    group = get_command(cli.app)

    def engine_options(command):
        ours = {"model", "kv_budget", "eviction", "compress", "lossless", "offload", "offload_budget", "offload_folder"}
        return {option.name: option.default for option in command.params if option.name in ours}

    assert engine_options(group.commands[name]) == engine_options(group.commands["solve"])
    assert len(engine_options(group.commands[name])) == 8


def test_the_options_of_a_group_are_in_the_help_panel_of_their_class():
    said = CliRunner().invoke(cli.app, ["solve", "--help"]).stdout
    panels = [line.strip("╭─╮ ") for line in said.splitlines() if line.startswith("╭")]
    assert panels == [
        "Arguments", "Options", "Tasks of rows (rows:FILE)", "How to search",
        "How thoughts are sampled (default: as the task says)", "How thoughts are written (default: as the task says)",
        "Scores and approximations", "Limits of one search", "Model", "KV memory",
    ]  # fmt: skip
    assert "…" not in said.replace("K=V,…", "")  # no name and no text is cut at 80 columns
