"""``--verifier`` and the sampling options; ``--compress`` goes the same way, see ``tests/cli/options/test_engine.py``."""

import json
import logging

import pytest
from typer.testing import CliRunner

from rksc_tot.cli.commands.app import app
from rksc_tot.cli.exits import USAGE
from rksc_tot.cli.options.plugins import plug_in
from rksc_tot.core.version import __version__
from rksc_tot.verifiers import VERIFIERS, Likelihood, verifier
from tests.game24_player import player

PUZZLE = "4 5 6 10"


@verifier
def near(problem, path):
    return 1


def verifier_of(text):
    return plug_in(VERIFIERS, "--verifier", text, "likelihood:of=path")


def run(*args):
    return CliRunner().invoke(app, [*args])


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("likelihood", Likelihood()),
        ("likelihood:of=path", Likelihood(of="path")),
        ('likelihood:of="path"', Likelihood(of="path")),
        (f"{__name__}:near", near),
        (f"{__name__}:near:attempts=3,timeout=null", near.model_copy(update={"attempts": 3, "timeout": None})),
    ],
)
def test_a_verifier_is_named_with_its_settings(text, made):
    assert verifier_of(text) == made


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--verifier", "best"], "there is no verifier 'best'"),
        (["--verifier", "prm"], "verifier 'prm': folder must be given"),
        (["--verifier", "prm:aggregate=min"], "verifier 'prm': folder must be given"),
        (
            ["--verifier", "prm:models/x,aggregate=max"],
            "aggregate: should be 'last', 'min', 'mean' or 'product', not 'max'",
        ),
        (["--verifier", "likelihood:"], "--verifier is 'likelihood:' - write name or name:setting=value"),
        (["--verifier", "likelihood:of=path,of=thought"], "with of twice"),
        (["--verifier", "likelihood:of=tree"], "verifier 'likelihood': of: should be 'thought' or 'path', not 'tree'"),
        (["--verifier", "lm_value:of=path"], "there is no setting 'of'"),
        (["--temperature", "-1"], "sampling: temperature: should be greater than or equal to 0, not -1"),
        (["--top-p", "2"], "sampling: top_p: should be less than or equal to 1, not 2"),
        (["--top-k", "0"], "sampling: top_k: should be greater than or equal to 1, not 0"),
    ],
)
def test_an_invalid_option_is_one_sentence_before_a_model_is_loaded(monkeypatch, args, says):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    result = run("solve", "game24", PUZZLE, *args)
    assert result.exit_code == USAGE
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_sampling_options_replace_the_settings_of_the_task(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    few = ["--set", "k=6", "--temperature", "0.5", "--top-k", "9"]
    sampling = json.loads(run("solve", "game24", PUZZLE, "--json", *few).stdout)["settings"]["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["top_p"]) == (0.5, 9, 1.0)
    rows = json.loads(run("compare", "game24", PUZZLE, "--json", "--only", "ToT-DFS", "--temperature", "0.5").stdout)
    assert rows["rows"][0]["settings"]["sampling"]["temperature"] == 0.5


def test_verbose_writes_the_log_to_stderr_and_leaves_the_logger_as_it_was(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    log = logging.getLogger("rksc_tot")
    before = log.level, list(log.handlers)
    result = run("solve", "game24", PUZZLE, "--json", "--set", "k=6", "-v")
    assert " DEBUG search " in result.stderr
    json.loads(result.stdout)
    assert (log.level, log.handlers) == before
    assert "DEBUG" not in run("solve", "game24", PUZZLE, "--json", "--set", "k=6").stderr


def test_the_version_is_shown():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"rksc-tot {__version__}\n")
