"""A results file is read with its trees; an invalid line is named."""

import json
from pathlib import Path

import pytest

from rksc_tot.api.jsonl_reader import read_results
from rksc_tot.api.solve import solve
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.tasks.game24.task import Game24
from tests.cli.commands.run_command import (
    PUZZLES,
    cli_strategy,
    quoted,
    results,
    run,
)
from tests.game24_player import judge, player

pytestmark = pytest.mark.usefixtures("played")


@pytest.mark.parametrize("reply", ["\x1b[2J\u2028\x00\n", '"}\n', "\ud800\n", "é" * 300])
def test_every_line_is_json_whatever_the_model_writes(monkeypatch, reply):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: MockEngine(lambda text, rng: reply, judge))
    monkeypatch.setattr(
        Game24, "parse", lambda self, problem, path, text: super(Game24, self).parse(problem, path, text)
    )
    run(quoted(), "--trees")
    assert len(results()) == 4


def test_infinite_numbers_are_written_as_strings():
    assert run(quoted(), "--strategy", "dfs", "--set", "threshold=-1e999", few=["--set", "k=3"]).exit_code == 0
    assert results()[0]["settings"]["strategy"]["threshold"] == "-inf"
    assert (
        run(quoted(), "--resume", "--strategy", "dfs", "--set", "threshold=-1e999", few=["--set", "k=3"]).exit_code == 0
    )


def test_read_results_gives_trees_and_skips_an_incomplete_line():
    run(quoted(["1 1 1 1", *PUZZLES]), "--trees")
    with Path("r.jsonl").open("ab") as file:
        file.write(b'{"id": 9, "prob')
    lines = list(read_results("r.jsonl"))
    assert sorted(line["id"] for line in lines) == [1, 2, 3, 4, 5]
    for line in lines:
        if line["verdict"] == "refused":
            assert line["result"] is None
            continue
        alone = solve("game24", line["problem"], engine=player(), strategy=cli_strategy())
        assert line["result"]["tree"] == alone.tree
        assert line["verdict"] == {True: "right", False: "wrong", None: "unanswered"}[alone.correct]


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "fine"},
        {"verdict": None},
        {"verdict": "failed"},
        {"failure": "x"},
        {"result": None},
        {"settings": 1},
    ],
)
def test_read_results_names_an_invalid_line(change):
    run(quoted(PUZZLES[:2]))
    first, second = Path("r.jsonl").read_text(encoding="utf-8").splitlines()
    Path("r.jsonl").write_text(f"{first}\n{json.dumps(json.loads(second) | change)}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^'r.jsonl', line 2 is not a result"):
        list(read_results("r.jsonl"))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_results("none.jsonl"))


def test_a_line_names_the_verifier_and_the_model_that_were_used():
    run(quoted(PUZZLES[:1]))
    run(quoted(PUZZLES[:1]), "--verifier", "likelihood", "--model", "embedded", out="2.jsonl")
    said = [results(out)[0]["settings"] for out in ("r.jsonl", "2.jsonl")]
    assert [each["verifier"]["name"] for each in said] == ["lm_value", "likelihood"]
    assert [each["model"] for each in said] == ["embedded", "embedded"]
    assert run(quoted(PUZZLES[:1]), "--resume", "--verifier", "lm_value").exit_code == 0
