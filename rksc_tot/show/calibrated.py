"""The outcome of a calibration, for a person to read."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.calibration import Calibration, Outcome
from rksc_tot.policies.cgee import EntropyStable, Margins, RivalStop, VerifySkip
from rksc_tot.show.plain import one_line


def calibrated(calibration: Calibration) -> RenderableType:
    """What may be decided early, what it saves and what is known of its errors; or why it may not."""
    kinds = {Margins: "margins", EntropyStable: "entropy"}
    table = Table(box=None, pad_edge=False)
    for name, justify in (("mechanism", "left"), ("saves", "right"), ("acted", "right"), ("flips", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column(f"{1 - calibration.alpha:.0%} bound", justify="right")
    table.add_column("")
    for name, outcome, unit in (
        ("layer exit", calibration.exit, "layers"),
        ("the other rule", calibration.other, "layers"),
        ("verify skip", calibration.skip, "verifications"),
        ("rival stop", calibration.rivals, "tokens"),
    ):
        table.add_row(name, *_figures(calibration, outcome, unit), _remark(outcome, kinds))
    guarantee = (
        f"{calibration.model}, {calibration.problems} problems, {calibration.fitting} of them to make the rules. With "
        f"confidence {1 - calibration.alpha:g}, of the decisions taken early at most {calibration.delta:.2%} differ."
    )
    return Group(table, Text(one_line(guarantee, 400), style="dim"))


def _figures(calibration: Calibration, outcome: Outcome[Any], unit: str) -> tuple[str, str, str, str]:
    step = outcome.step
    if step is None:
        return "off", "", "", ""
    bound = calibration.bound(outcome)
    return f"{step.saved:.0%} of {unit}", f"{step.n} of {outcome.examples}", f"{step.k}", f"{bound:.2%}"


def _remark(outcome: Outcome[Any], kinds: dict[type, str]) -> str:
    if outcome.refused is not None:
        return one_line(outcome.refused, 300)
    rule = outcome.rule
    if isinstance(rule, VerifySkip | RivalStop):
        return f"confidence {rule.confidence:g}, margin {rule.margin:g}"
    if isinstance(rule, EntropyStable):
        return f"entropy below {rule.theta:.2g}, change below {rule.epsilon:.2g} nats"
    return "margin at layer " + ", ".join(f"{layer}: {at:.4f}" for layer, at in sorted(rule.thresholds.items()))
