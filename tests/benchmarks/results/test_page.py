"""The results page is written from the kept figures only."""

import json

import pytest
import typer

from benchmarks.registry import BENCHMARKS
from benchmarks.results import page, runs
from benchmarks.results.tables import interval, mark, number, table


@pytest.fixture
def docs(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "DOCS", tmp_path)
    monkeypatch.setattr(page, "DOCS", tmp_path)
    (tmp_path / "figures").mkdir()
    return tmp_path


def keep(docs, name, **found):
    (docs / "figures" / f"{name}.json").write_text(
        json.dumps({"name": name, "environment": {"card": "Abacus 9"}, **found})
    )


def text_of(docs, **options):
    page.main(
        **{"puzzles": None, "rows": "1-2", "trees": None, "model": None, "quick": True, "only": ["none"], **options}
    )
    return (docs / "results.md").read_text()


def test_a_section_has_a_table_and_names_missed_marks(docs):
    figures = {
        "ms_per_node.1000": 0.03,
        "ms_per_node.10000": 0.3,
        "bytes_per_node": 2000,
        "problems.rss_growth_mib": 0.1,
    }
    keep(docs, "scale", figures=figures)
    text = text_of(docs)
    assert "|  | 1,000 nodes | 10,000 nodes |" in text
    assert "| milliseconds a node | 0.03 | 0.3 |" in text
    assert "Milliseconds a node: 0.3 (mark: at most 0.2): **missed**." in text
    assert "Bytes a node: 2,000 (mark: at most 2,048): met." in text


def test_sections_without_figures_are_left_out(docs):
    assert "##" not in text_of(docs)


def test_figures_of_a_gpu_name_the_card(docs):
    keep(docs, "gpu-roofline-7b", figures={"packed": False})
    assert "| roofline-7b | Abacus 9 | packed false |" in text_of(docs)


def test_an_unknown_run_is_refused_with_the_known_names(docs):
    with pytest.raises(typer.BadParameter, match="no run what; there are games-roots"):
        text_of(docs, only=["what"])


def test_runs_of_a_model_are_named_after_its_folder(tmp_path):
    names = {run.name: run.command for run in runs.all_runs(None, "", None, [tmp_path / "mine"], quick=True)}
    assert names["labels-mine"] == [
        "-m",
        "benchmarks",
        "labels",
        "--json",
        "--quick",
        "--model",
        str(tmp_path / "mine"),
    ]


def test_every_benchmark_with_figures_is_run_for_the_pages(tmp_path):
    made = runs.all_runs(tmp_path / "p.csv", "1-2", tmp_path / "t", [tmp_path / "m"], False, tmp_path / "rows.jsonl")
    assert {run.command[2] for run in made} == {*BENCHMARKS} - {"house"}


def test_the_pages_of_results_equal_those_of_the_kept_figures(monkeypatch, tmp_path):
    shown = {name: (runs.DOCS / name).read_text() for name in ("results.md", "results_own_work.md")}
    monkeypatch.setattr(page, "DOCS", tmp_path)
    page.write()
    assert {name: (tmp_path / name).read_text() for name in shown} == shown
    assert len(shown["results.md"].splitlines()) <= 200


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "true"),
        ("text", "text"),
        (1.5e-5, "1.5e-05"),
        (2, "2"),
        (1234.5, "1,234"),
        (0.12345, "0.123"),
    ],
)
def test_numbers_have_three_significant_digits(value, shown):
    assert number(value) == shown


def test_a_figure_is_shown_with_its_interval():
    assert interval({"a": 3.21987, "a.low": 3.1, "a.high": 3.3}, "a") == "3.22 (3.1–3.3)"


def test_a_figure_that_was_not_measured_is_named_as_such():
    assert mark("Speed:", None, least=2) == "Speed: not measured."


def test_rows_without_cells_are_left_out():
    assert table("", ["a", "b"], ["x"], lambda row, _: "1" if row == "a" else "") == [
        "|  | x |",
        "|---|---|",
        "| a | 1 |",
    ]


def test_the_second_page_has_a_row_for_each_strategy_on_the_embedded_models(docs):
    figures = {"countdown.BFS, wide.solved": 8, "countdown.BFS, wide.n": 10}
    figures |= {"countdown.BFS, wide.low": 0.49, "countdown.BFS, wide.high": 0.94}
    keep(docs, "families", figures=figures)
    text_of(docs)
    text = (docs / "results_own_work.md").read_text()
    assert "| strategy | countdown |\n|---|---|\n| BFS, wide | 0.8 (0.49–0.94) |" in text


def test_the_second_page_says_what_reward_models_miss(docs):
    figures = {
        "max_abs_diff": 2e-7,
        "max_abs_diff_by_kind.outcome": 2e-7,
        "token_ratio_depth8": 0.15,
        "layers_saved": 0.86,
        "exit_error_upper95": 0.015,
    }
    keep(docs, "prm", figures=figures)
    text_of(docs)
    text = (docs / "results_own_work.md").read_text()
    assert "| outcome | 2.0e-07 |" in text
    assert "Error, upper 95 % bound: 0.015 (mark: at most 0.01): **missed**." in text
