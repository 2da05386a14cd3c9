"""Process reward models: incremental scores, their cost, and early exit on a trained head.

``python -m benchmarks prm [--json] [--quick]``

* ``max_abs_diff.KIND``: largest difference between scores that are computed step by step on the reward model's own KV tree, and
  those of the stock model on the whole text in its makers' layout, on a tiny random model of each kind.
* ``token_ratio_depth8``: tokens forwarded for a prompt of 256 tokens and eight steps of 16, over those of scoring the whole path
  after each step; the seconds of both, on a random model of the shape of SmolLM2-135M.
* ``exit``: a value head trained in this benchmark with labels of the exact solver. ``layers_saved`` and ``exit_error`` are as in
  ``cgee``. ``rows_again``: share of rows computed again, since a kept step that left early is computed in full for the next
  step. ``overlap``: how long passes of the reward model run while the other model's do, in eight depth-first searches at a
  time. (Breadth-first searches of equal steps go in lockstep: all write, then all are read.)
"""

from __future__ import annotations

from benchmarks.common.report import Quick, Report
from benchmarks.quality.prm.early_exit import early_exit
from benchmarks.quality.prm.incremental import cost, differences


def main(quick: Quick = False) -> Report:
    """Measure process reward models."""
    found = differences()
    exit = early_exit(quick)
    return Report(
        {
            "max_abs_diff": max(found.values()),
            "max_abs_diff_by_kind": found,
            **cost(quick),
            "layers_saved": exit["layers_saved"],
            "exit_error_upper95": exit["exit_error_upper95"],
            "exit": exit,
        }
    )
