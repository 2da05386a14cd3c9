"""Candidate rules, from strict to loose, made on the fitting part: what will be tested must not depend on what tests it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rksc_tot.evaluation.calibration.examples import Trace, Trial, try_exit
from rksc_tot.policies.early_exit.cgee import EntropyStable, Margins, RivalStop, VerifySkip, entropy, lead, likeliest

Candidate = tuple[float, Any]
"""The share of errors tolerated on the fitting part, and the rule that saves the most within it."""

STEPS = 24  # tolerated shares of errors: none, then doubling every third step up to twice δ
ENOUGH = 8  # rows that must reach a threshold for it to mean anything
CAUTION = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # parts of the distance from a lead of 1 that stricter candidates keep


def levels(delta: float) -> list[float]:
    """The tolerated shares of errors, ascending."""
    return [0.0, *(min(2 * delta, 1.0) * 2 ** (-n / 3) for n in reversed(range(STEPS)))]


def margin_rules(traces: Sequence[Trace], delta: float) -> list[Candidate]:
    """:class:`Margins`: layer by layer, the lowest threshold at which the rows that exit there err within the level.

    The strictest come before these: the rule without an error, its thresholds moved part of the way to 1.
    """
    if not traces:
        return []
    end = [likeliest(trace[-1]) for trace in traces]
    depth = len(traces[0])
    ranked: list[list[tuple[float, int, bool]]] = []  # of each layer: lead, row, whether it errs; best lead first
    for layer in range(depth - 1):
        rows = [(lead(trace[layer]), row, likeliest(trace[layer]) != end[row]) for row, trace in enumerate(traces)]
        ranked.append(sorted(rows, reverse=True))
    fitted = [(level, _margins(ranked, level)) for level in levels(delta)]
    strict = [(0.0, _cautious(fitted[0][1], part)) for part in CAUTION]
    return _distinct([*((level, rule) for level, rule in strict if rule and _faultless(rule, traces)), *fitted])


def _cautious(rule: Margins | None, part: float) -> Margins | None:
    return rule and Margins(thresholds={layer: 1 - (1 - lead) * part for layer, lead in rule.thresholds.items()})


def _faultless(rule: Margins, traces: Sequence[Trace]) -> bool:
    """Whether it errs nowhere; rows that a stricter threshold keeps in go on to layers that were fitted without them."""
    return not any(verdict is not None and verdict.wrong for verdict in (try_exit(rule, trace) for trace in traces))


def _margins(ranked: Sequence[Sequence[tuple[float, int, bool]]], level: float) -> Margins | None:
    gone: set[int] = set()
    thresholds: dict[int, float] = {}
    for layer, rows in enumerate(ranked, start=1):
        staying = [entry for entry in rows if entry[1] not in gone]
        errors, taken = 0, 0
        for count, (reached, _, wrong) in enumerate(staying, start=1):
            errors += wrong
            tied = count < len(staying) and staying[count][0] == reached
            if errors <= level * count and not tied:
                taken = count
        if taken >= ENOUGH:
            thresholds[layer] = staying[taken - 1][0]
            gone.update(row for _, row, _ in staying[:taken])
    return Margins(thresholds=thresholds) if thresholds else None


def entropy_rules(traces: Sequence[Trace], delta: float) -> list[Candidate]:
    """:class:`EntropyStable`: of a grid of (θ, ε) the pair that saves the most within each level."""
    if not traces or len(traces[0]) < 3:
        return []
    depth, highest = len(traces[0]), math.log(len(traces[0][0]))
    ends = [likeliest(trace[-1]) for trace in traces]
    heights = [[entropy(probabilities) for probabilities in trace[:-1]] for trace in traces]
    wrongs = [[likeliest(p) != end for p in trace[:-1]] for trace, end in zip(traces, ends, strict=True)]
    figures = []
    for theta in (highest * 2**-n for n in range(16)):
        for epsilon in (theta, theta / 4, theta / 16):
            acted, errors, saved = 0, 0, 0.0
            for height, wrong in zip(heights, wrongs, strict=True):
                for at in range(1, depth - 1):
                    if max(height[at - 1 : at + 1]) < theta and abs(height[at] - height[at - 1]) < epsilon:
                        acted, errors, saved = acted + 1, errors + wrong[at], saved + 1 - (at + 1) / depth
                        break
            rule = EntropyStable(theta=theta, epsilon=epsilon, layers=tuple(range(1, depth)))
            figures.append((rule, acted, errors, saved))
    return _best(figures, delta)


def gate_rules(
    kind: Callable[..., VerifySkip] | Callable[..., RivalStop], trial: Trial, groups: Sequence[Any], delta: float
) -> list[Candidate]:
    """:class:`VerifySkip` or :class:`RivalStop`: of a grid of (confidence, margin) the pair that saves the most."""
    shares = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)
    figures = []
    for rule in (kind(confidence=c, margin=m) for c in shares for m in shares):
        verdicts = [verdict for group in groups if (verdict := trial(rule, group)) is not None]
        errors = sum(verdict.wrong for verdict in verdicts)
        figures.append((rule, len(verdicts), errors, math.fsum(verdict.saved for verdict in verdicts)))
    return _best(figures, delta)


def _best(figures: Sequence[tuple[Any, int, int, float]], delta: float) -> list[Candidate]:
    """For each level the rule that saves the most; ``figures``: rule, how often it acted, erred, and what it saved."""
    found = []
    for level in levels(delta):
        within = [
            (saved, rule) for rule, acted, errors, saved in figures if acted >= ENOUGH and errors <= level * acted
        ]
        found.append((level, max(within, key=lambda pair: pair[0])[1] if within else None))
    return _distinct(found)


def _distinct(found: Any) -> list[Candidate]:
    """Without the levels that allow no rule, or the same as the level before."""
    candidates: list[Candidate] = []
    for level, rule in found:
        if rule is not None and (not candidates or candidates[-1][1] != rule):
            candidates.append((level, rule))
    return candidates
