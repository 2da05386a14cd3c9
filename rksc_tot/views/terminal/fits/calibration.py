"""Terminal report of a calibration."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rksc_tot.core.plugins.user_code import one_line
from rksc_tot.evaluation.calibration import Calibration, MechanismOutcome
from rksc_tot.policies.early_exit.cgee import EntropyStable, Margins, RivalStop, VerifySkip


def calibration_report(calibration: Calibration) -> RenderableType:
    """A table of the accepted rules with their savings and error bounds, and the reasons for rules that were not accepted."""
    table = Table(box=None, pad_edge=False)
    table.add_column("mechanism")
    for name in ("saves", "acted on", "flips", f"{1 - calibration.alpha:.0%} bound"):
        table.add_column(name, justify="right")
    remarks = []
    for name, outcome, unit in (
        ("layer exit", calibration.exit, "layers"),
        ("the other rule", calibration.other, "layers"),
        ("verify skip", calibration.skip, "questions"),
        ("rival stop", calibration.rivals, "tokens"),
    ):
        table.add_row(name, *_figures(calibration, outcome, unit))
        remarks.append(Text(one_line(f"{name}: {_remark(outcome)}", 400)))
    guarantee = (
        f"{calibration.model}, {calibration.problems} problems, {calibration.fitting} of them to make the rules. With "
        f"confidence {1 - calibration.alpha:g}, at most {calibration.delta:.2%} of early decisions differ from full ones."
    )
    return Group(table, Text(), *remarks, Text(one_line(guarantee, 400), style="dim"))


def _figures(calibration: Calibration, outcome: MechanismOutcome[Any], unit: str) -> tuple[str, str, str, str]:
    step = outcome.step
    if step is None:
        return "off", "", "", ""
    bound = calibration.bound(outcome)
    return f"{step.saved:.0%} of {unit}", f"{step.n} of {outcome.examples}", f"{step.k}", f"{bound:.2%}"


def _remark(outcome: MechanismOutcome[Any]) -> str:
    rule = outcome.rule
    if isinstance(rule, VerifySkip | RivalStop):
        return f"confidence at least {rule.confidence:g}, relative margin at least {rule.margin:g}"
    if isinstance(rule, EntropyStable):
        return f"entropy below {rule.theta:.2g}, change below {rule.epsilon:.2g} nats"
    if isinstance(rule, Margins):
        return "margin " + ", ".join(f"{at:.4f} at layer {layer}" for layer, at in sorted(rule.thresholds.items()))
    return f"off, because {outcome.refused}"
