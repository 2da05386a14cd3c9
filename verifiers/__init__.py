"""Verifiers, which score nodes."""

from rksc_tot.verifiers.base import PathView, Verifier
from rksc_tot.verifiers.checks.human import Human
from rksc_tot.verifiers.checks.outcome import OutcomeCheck
from rksc_tot.verifiers.checks.unit_tests import UnitTests
from rksc_tot.verifiers.ensemble import Ensemble
from rksc_tot.verifiers.function import FunctionVerifier, verifier
from rksc_tot.verifiers.language_model.judge import Judge
from rksc_tot.verifiers.language_model.lm_value import LMValue
from rksc_tot.verifiers.language_model.lm_vote import LMVote
from rksc_tot.verifiers.language_model.recompute import Recompute
from rksc_tot.verifiers.likelihood import Likelihood
from rksc_tot.verifiers.probe import LinearProbe
from rksc_tot.verifiers.random import RandomScores
from rksc_tot.verifiers.registry import VERIFIERS
from rksc_tot.verifiers.reward_model.prm import PRM, prm

__all__ = [
    "PRM",
    "VERIFIERS",
    "Ensemble",
    "FunctionVerifier",
    "Human",
    "Judge",
    "LMValue",
    "LMVote",
    "Likelihood",
    "LinearProbe",
    "OutcomeCheck",
    "PathView",
    "RandomScores",
    "Recompute",
    "UnitTests",
    "Verifier",
    "prm",
    "verifier",
]
