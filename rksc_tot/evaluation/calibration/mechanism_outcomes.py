"""Candidates walked through their tests, mechanism by mechanism."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from rksc_tot.evaluation.calibration.candidate_rules import Candidate, entropy_rules, gate_rules, levels, margin_rules
from rksc_tot.evaluation.calibration.examples import Harvest, Trace, Trial, try_exit, try_rivals, try_skip
from rksc_tot.policies.early_exit.cgee import RivalStop, VerifySkip, likeliest
from rksc_tot.policies.early_exit.fixed_sequence_testing import at_most, examples_needed, fixed_sequence
from rksc_tot.search.approximate.calibration import MechanismOutcome, TestStep

MOST_FITTED = 8000  # nodes and groups the candidates are made on
MOST_OUTSIDE = 0.1  # share of nodes at which the model may prefer to say something else than a label
Mechanism = Literal["exit", "other", "skip", "rivals"]


def outcomes_of(
    fit: Sequence[Harvest], test: Sequence[Harvest], delta: float, alpha: float, seed: int
) -> dict[Mechanism, MechanismOutcome[Any]]:
    """What becomes of each mechanism.

    Parameters
    ----------
    fit, test : sequence of Harvest
        Of the problems the candidates are made on, whole, and of those they are tested on, one node and one group each.
    delta, alpha : float
        δ and α.
    seed : int
        Of the choice among more nodes or groups than are needed to make candidates.
    """
    rng = random.Random(seed)
    traces = _some([trace for harvest in fit for trace in harvest.traces], rng)
    groups = _some([group for harvest in fit for group in harvest.groups], rng)
    asked = [trace for harvest in test for trace in harvest.traces]
    families = [margin_rules(traces, delta), entropy_rules(traces, delta)]
    # which kind is to be used is settled on the fitting part, so that its test need not be shared with the other's
    families.sort(key=lambda rules: _promise(rules, traces, delta), reverse=True)
    outside = [off for harvest in test for off in harvest.outside]
    exits = [_tested(rules, try_exit, asked, traces, delta, alpha, "node") for rules in families]
    off = _unfit(asked, traces, outside, delta, alpha)
    if off is not None:
        exits = [MechanismOutcome(examples=each.examples, walk=each.walk, refused=off) for each in exits]
    tested = [group for harvest in test for group in harvest.groups]
    return {
        "exit": exits[0],
        "other": exits[1],
        "skip": _tested(
            gate_rules(VerifySkip, try_skip, groups, delta), try_skip, tested, groups, delta, alpha, "group"
        ),
        "rivals": _tested(
            gate_rules(RivalStop, try_rivals, groups, delta), try_rivals, tested, groups, delta, alpha, "group"
        ),
    }


def _unfit(
    asked: Sequence[Trace], fitted: Sequence[Trace], outside: Sequence[bool], delta: float, alpha: float
) -> str | None:
    """Why no exit is to be trusted on these answers, whatever the layers agree on."""
    if outside and sum(outside) / len(outside) > MOST_OUTSIDE:
        return (
            f"at {sum(outside)} of {len(outside)} nodes the model gives more than half its mass to something else than the "
            "labels, which the readings between its layers do not show"
        )
    ends = Counter(likeliest(trace[-1]) for trace in fitted).most_common(1)
    others = sum(likeliest(trace[-1]) != ends[0][0] for trace in asked) if ends else 0
    if asked and at_most(others, len(asked), delta) <= alpha:
        return (
            f"the model decides for the same label at {len(asked) - others} of {len(asked)} nodes: one that never looked would "
            "pass the test as well"
        )
    return None


def _promise(rules: Sequence[Candidate], traces: Sequence[Any], delta: float) -> float:
    """What the loosest rule that errs within δ on the fitting part saves there."""
    within = [rule for level, rule in rules if level <= delta]
    return _saved(within[-1], try_exit, traces) if within else 0.0


def _saved(rule: Any, trial: Trial, examples: Sequence[Any]) -> float:
    verdicts = [trial(rule, example) for example in examples]
    return sum(verdict.saved for verdict in verdicts if verdict is not None) / len(verdicts) if verdicts else 0.0


def _some(rows: list[Any], rng: random.Random) -> list[Any]:
    return rows if len(rows) <= MOST_FITTED else rng.sample(rows, MOST_FITTED)


def _tested(
    rules: Sequence[Candidate], trial: Trial, examples: Sequence[Any], fitted: Sequence[Any], delta: float, alpha: float,
    what: str,
) -> MechanismOutcome[Any]:  # fmt: skip
    """Walk from the first candidate that, by the fitting part, acts often enough to be tested, to the first that fails."""
    needed = examples_needed(delta, alpha)
    while len(rules) > 1 and _surely(_share(rules[0][1], trial, fitted), len(examples)) < needed:
        rules = rules[1:]
    verdicts = [[trial(rule, example) for example in examples] for _, rule in rules]
    counts = [(sum(v is not None for v in found), sum(v.wrong for v in found if v is not None)) for found in verdicts]
    walk: tuple[TestStep[Any], ...] = tuple(
        TestStep(level=level, rule=rule, n=n, k=k, p=p, saved=sum(v.saved for v in found if v) / len(found))
        for (level, rule), found, (n, k, p, _) in zip(
            rules, verdicts, fixed_sequence(counts, delta, alpha), strict=False
        )
    )
    passed = sum(step.p <= alpha for step in walk)
    if passed:
        return MechanismOutcome(examples=len(examples), walk=walk, chosen=passed - 1)
    if not walk:
        why = (
            f"on the fitting part no threshold keeps the errors within {levels(delta)[-1]:.1%}, twice what is asked for"
        )
    elif walk[0].n < needed:
        why = (
            f"the strictest candidate acts at {walk[0].n} of {len(examples)} {what}s with {walk[0].k} errors; "
            f"it would take {needed} without an error"
        )
    else:
        why = (
            f"the strictest candidate errs at {walk[0].k} of {walk[0].n} {what}s: p = {walk[0].p:.2g}, above {alpha:g}"
        )
    return MechanismOutcome(examples=len(examples), walk=walk, refused=why)


def _surely(share: float, n: int) -> float:
    """Of how many examples among n a rule acts at least, two standard deviations below what is expected."""
    return n * share - 2 * math.sqrt(n * share * (1 - share))


def _share(rule: Any, trial: Trial, fitted: Sequence[Any]) -> float:
    return sum(trial(rule, example) is not None for example in fitted) / len(fitted) if fitted else 0.0
