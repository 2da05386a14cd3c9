"""Every benchmark is listed with a line and runs by its name; its last line of output is one JSON object."""

import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import __main__ as front
from benchmarks import registry
from benchmarks.common.report import Report


def test_every_benchmark_is_listed_with_one_line(capsys):
    front.start([])
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:] if line}
    assert list(listed) == [*registry.BENCHMARKS, "results"]
    assert all(len(line) < 150 and line.endswith(".") for line in listed.values())


@pytest.mark.parametrize("name", registry.BENCHMARKS)
def test_every_benchmark_has_options_and_explains_its_figures(name):
    app = typer.Typer()
    app.command()(front.command(name))
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert "--json" in shown.output
    assert "--quick" in shown.output
    assert len(registry.explanation(name)) > 200


def test_the_last_line_is_the_json_object(monkeypatch, capsys):
    def main(quick: bool = False, device: str = "cpu") -> Report:
        return Report({"a": {"b": 1 if quick else 2}}, {"device": device})

    monkeypatch.setattr(front, "main_of", lambda name: main)
    for arguments, lines, figure in ((["--json"], 1, 2), (["--quick"], 2, 1)):
        with pytest.raises(SystemExit):
            front.start(["scale", *arguments, "--device", "abacus"])
        said = capsys.readouterr().out.splitlines()
        assert len(said) == lines
        told = json.loads(said[-1])
        assert (told["name"], told["figures"], told["environment"]["device"]) == ("scale", {"a.b": figure}, "abacus")
        assert told["environment"]["python"] == sys.version.split()[0]


def test_an_unknown_benchmark_is_refused_with_the_known_names():
    with pytest.raises(SystemExit, match=r"there is no benchmark 'what'; there are attention, cgee, .*verifiers$"):
        front.start(["what"])
