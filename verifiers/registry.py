"""The verifiers by name. An installed package adds one through the entry-point group ``rksc_tot.verifiers``."""

from __future__ import annotations

from rksc_tot.core.plugins.registry import Registry
from rksc_tot.verifiers.base import Verifier

VERIFIERS: Registry[Verifier] = Registry(
    kind="verifier",
    base=Verifier,
    group="rksc_tot.verifiers",
    built_in={
        "ensemble": "rksc_tot.verifiers.ensemble:Ensemble",
        "human": "rksc_tot.verifiers.checks.human:Human",
        "judge": "rksc_tot.verifiers.language_model.judge:Judge",
        "likelihood": "rksc_tot.verifiers.likelihood:Likelihood",
        "lm_value": "rksc_tot.verifiers.language_model.lm_value:LMValue",
        "lm_vote": "rksc_tot.verifiers.language_model.lm_vote:LMVote",
        "outcome": "rksc_tot.verifiers.checks.outcome:OutcomeCheck",
        "prm": "rksc_tot.verifiers.reward_model.prm:PRM",
        "probe": "rksc_tot.verifiers.probe:LinearProbe",
        "random": "rksc_tot.verifiers.random:RandomScores",
        "recompute": "rksc_tot.verifiers.language_model.recompute:Recompute",
        "unit_tests": "rksc_tot.verifiers.checks.unit_tests:UnitTests",
    },
    function_hint="put @verifier above the function",
    unnamed={"ensemble": "members", "prm": "folder"},
)
