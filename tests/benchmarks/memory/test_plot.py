"""The plot has every point with its interval, and is that of its figures."""

import json
from xml.etree import ElementTree as ET

from benchmarks.memory.plot import curves, draw
from benchmarks.results import page
from benchmarks.results import runs as kept_runs

SHARES = "solved", "solved.low", "solved.high", "memory"

DRAWN = {
    "curve.games.full": (0.97, 0.9, 0.99, 1.0), "curve.games.arborkv.25%": (0.96, 0.9, 0.99, 0.25),
    "curve.games.arborkv.17%": (0.95, 0.9, 0.99, 0.17), "curve.paths.snapkv_unpinned.64": (0.5, 0.4, 0.6, 0.3),
}  # fmt: skip
FIGURES = {
    f"{name}.{part}": value for name, values in DRAWN.items() for part, value in zip(SHARES, values, strict=True)
}


def test_every_point_is_drawn_with_its_interval_and_nothing_else():
    assert [point.memory for point in curves(FIGURES, "games")["arborkv"]] == [0.17, 0.25]
    assert curves(FIGURES, "thoughts") == {}
    picture = draw(FIGURES | {"peak_reduction.arborkv": 4.0, "curve.games.arborkv.25%.recomputed": 5.0})
    assert picture == draw(dict(reversed(FIGURES.items())))
    drawn = ET.fromstring(picture)
    circles = [each for each in drawn.iter("{http://www.w3.org/2000/svg}circle") if each.get("r") == "3.2"]
    assert len(circles) == len(DRAWN)
    titles = {each.text for each in drawn.iter("{http://www.w3.org/2000/svg}title")}
    assert titles == {"full", "arborkv", "snapkv_unpinned"}
    moved = draw(FIGURES | {"curve.games.arborkv.25%.solved.low": 0.5})
    assert moved != picture


def test_the_page_shows_the_plot_that_belongs_to_its_figures(monkeypatch, tmp_path):
    monkeypatch.setattr(page, "DOCS", tmp_path)
    kept = json.loads((kept_runs.DOCS / "figures" / "pressure.json").read_text())
    monkeypatch.setattr(page, "kept_figures", lambda: {"pressure": kept})
    page.write()
    assert "![accuracy against memory](pressure.svg)" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "pressure.svg").read_text() == draw(kept["figures"])
