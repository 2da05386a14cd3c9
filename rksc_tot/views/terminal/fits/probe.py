"""Terminal report of a fit of the probe verifier."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.verifiers.probe import ProbeFit


def probe_report(fit: ProbeFit) -> RenderableType:
    """A table of the AUC on held-out problems by layer and head, with the chosen layers in bold."""
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", justify="right")
    for head in fit.heads:
        table.add_column("other depths" if head.depth is None else f"depth {head.depth}", justify="right")
    for layer in range(1, fit.layers + 1):
        row = [Text(_auc(head.auc[layer - 1]), style="bold" if layer == head.layer else "") for head in fit.heads]
        table.add_row(str(layer), *row)
    basis = (
        f"{fit.model}, task {fit.task}: {fit.thoughts} thoughts of {fit.problems} problems, labelled by {fit.labels}."
    )
    verdict = "AUC on held-out problems; 0.5 is chance. The layers in bold were chosen."
    return Group(table, Text(), Text(verdict, style="bold"), Text(one_line(basis, 400), style="dim"))


def _auc(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
