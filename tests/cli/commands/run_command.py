"""Runs ``rksc-tot run`` in this process, and reads its results."""

import json
from pathlib import Path

from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import USAGE

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11", "1 1 4 6"]


FEW = ["--set", "k=6", "--set", "b=2"]


def problems(*lines, name="p.jsonl"):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path(name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return name


def quoted(puzzles=PUZZLES):
    return problems(*map(json.dumps, puzzles))


def run(*args, out="r.jsonl", few=FEW, **options):
    return CliRunner().invoke(cli.app, ["run", "game24", *args, "--out", out, *few], **options)


def refuse(constant):
    raise AssertionError(constant)


def results(out="r.jsonl"):
    """The lines of a results file, in the order of their ids, without times."""
    text = Path(out).read_bytes()
    assert text == b"" or text.endswith(b"\n")
    records = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    for record in records:
        if record["result"]:
            del record["result"]["ledger"]["seconds"]
            del record["result"]["ledger"]["peak_kv_bytes"]  # of all searches of the moment
    return sorted(records, key=lambda record: str(record["id"]))


def assert_refused(result, *says):
    assert result.exit_code == USAGE, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for words in says:
        assert words in result.stderr


def cli_strategy():
    from rksc_tot.strategies import BFS

    return BFS(k=6, b=2)
