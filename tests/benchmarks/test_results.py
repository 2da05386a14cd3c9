"""The results page shows what was kept of every run, and nothing else."""

import json

import pytest
import typer

from benchmarks import results


@pytest.fixture
def docs(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    return tmp_path


def keep(docs, name, **found):
    (docs / "figures").mkdir(exist_ok=True)
    usual = {"environment": {"machine": "abacus"}, "date": "2026-01-02", "wall_seconds": 3}
    (docs / "figures" / f"{name}.json").write_text(json.dumps(usual | found))


def page(docs, **options):
    results.main(**{"puzzles": None, "rows": "1-2", "trees": None, "model": None, "quick": True, "only": [], **options})
    return (docs / "results.md").read_text()


def test_figures_stand_with_their_interval_machine_and_date(docs):
    keep(
        docs, "paper", figures={"a_over_c.64": 3.21987, "a_over_c.64.low": 3.1, "a_over_c.64.high": 3.3, "tiny": 1.5e-5}
    )
    keep(docs, "memory", figures={"refused": "a | b"})
    text = page(docs)
    assert "| `a_over_c.64` | 3.22 (3.1 to 3.3) |" in text
    assert "`a_over_c.64.low`" not in text
    assert "| `tiny` | 1.50e-05 |" in text
    assert "| `refused` | a \\| b |" in text
    assert "2026-01-02, 3 s; machine abacus." in text
    assert text.index("`paper`") < text.index("`memory`")


def test_what_was_not_run_is_not_on_the_page(docs):
    keep(docs, "memory", figures={"overruns": 0})
    text = page(docs)
    assert "### `memory`" in text
    assert "### `paper`" not in text
    assert "hundred puzzles of the paper" not in text


def test_runs_of_a_model_are_named_after_its_folder(docs, tmp_path):
    keep(docs, "prompt_reuse-mine", figures={"reuse_asks": 0.5})
    assert "### `prompt_reuse` on mine" in page(docs, model=[tmp_path / "mine"])


def test_a_run_there_is_not_is_refused(docs):
    with pytest.raises(typer.BadParameter, match="no run none; there are games-roots"):
        page(docs, only=["none"])


def test_what_a_gpu_has_left_is_shown_with_the_card(docs):
    keep(docs, "scale", figures={"bytes_per_node": 1})
    (docs / "figures" / "gpu-roofline-7b.json").write_text(
        json.dumps({"name": "roofline", "figures": {"packed": False}, "environment": {"card": "Abacus 9"}})
    )
    text = page(docs)
    assert "### `roofline` on Abacus 9" in text
    assert "roofline-7b" in text
    assert "| `packed` | False |" in text
    assert "card Abacus 9." in text


def test_every_run_but_the_games_is_a_benchmark_that_explains_itself():
    found = [run for run in results.runs(None, "", None, [], quick=True) if not run.games]
    assert {"scale", "throughput", "roofline", "attention", "prm_depth", "peers"} <= {run.name for run in found}
    assert all(run.command[:3] == ["-m", f"benchmarks.{run.name}", "--json"] and len(run.note) > 200 for run in found)
