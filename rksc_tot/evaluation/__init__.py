"""Compares strategies on the same problems: contenders, problems, results; also calibration and ArborKV fits."""

from rksc_tot.evaluation.compare import ComparedRows, compare
from rksc_tot.evaluation.comparison_rows import Comparison, Failure, Row
from rksc_tot.evaluation.contenders import choose_contenders
from rksc_tot.evaluation.problems import choose_problems

__all__ = ["ComparedRows", "Comparison", "Failure", "Row", "choose_contenders", "choose_problems", "compare"]
