"""Terminal report of a fit of ArborKV."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.evaluation.arborkv.fit import LEVEL, Fitted


def fit_report(found: Fitted) -> RenderableType:
    """A table of θ and separation by feature, and the separation of the whole fit on held-out problems."""
    table = Table(box=None, pad_edge=False)
    table.add_column("feature")
    for name in ("θ", "mean if changed", "mean if not", "separation alone"):
        table.add_column(name, justify="right")
    for feature in found.features:
        alone = "" if feature.alone is None else f"{feature.alone:.2f}"
        table.add_row(feature.name, f"{feature.theta:.4g}", f"{feature.changed:.4g}", f"{feature.unchanged:.4g}", alone)
    table.add_row("offset", f"{found.fit.offset:.4g}")
    fit = found.fit
    basis = (
        f"{fit.model}, task {fit.task}: {fit.samples} thoughts of {fit.problems} problems were left out one at a time; "
        f"{fit.changed} of them changed the outcome."
    )
    return Group(table, Text(), Text(_separation(found), style="bold"), Text(one_line(basis, 400), style="dim"))


def _separation(found: Fitted) -> str:
    if found.fit.separation is None:
        return "separation on held-out problems: unknown, as too few problems have both kinds"
    within = "" if found.interval is None else f" ({LEVEL:.0%}: {found.interval[0]:.2f} to {found.interval[1]:.2f})"
    return f"separation on held-out problems: {found.fit.separation:.2f}{within}; 0.5 is chance"
