"""A fit of ArborKV, for a person to read."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.evaluation.arborkv.fit import LEVEL, Fitted
from rksc_tot.views.terminal.plain_text import one_line


def fitted(found: Fitted) -> RenderableType:
    """θ by feature, how well each tells what mattered from what did not, and how well all together do."""
    table = Table(box=None, pad_edge=False)
    table.add_column("feature")
    for name in ("θ", "mean where it mattered", "elsewhere", "separation alone"):
        table.add_column(name, justify="right")
    for feature in found.features:
        alone = "" if feature.alone is None else f"{feature.alone:.2f}"
        table.add_row(feature.name, f"{feature.theta:.4g}", f"{feature.changed:.4g}", f"{feature.unchanged:.4g}", alone)
    table.add_row("offset", f"{found.fit.offset:.4g}")
    fit = found.fit
    basis = (
        f"{fit.model}, task {fit.task}: {fit.samples} thoughts left out on {fit.problems} problems, one at a time; "
        f"{fit.changed} of them changed the outcome."
    )
    return Group(table, Text(), Text(_separation(found), style="bold"), Text(one_line(basis, 400), style="dim"))


def _separation(found: Fitted) -> str:
    if found.fit.separation is None:
        return "separation on problems not seen: not known, as too few problems have both kinds"
    within = "" if found.interval is None else f" ({LEVEL:.0%}: {found.interval[0]:.2f} to {found.interval[1]:.2f})"
    return f"separation on problems not seen: {found.fit.separation:.2f}{within}; 0.5 is chance"
