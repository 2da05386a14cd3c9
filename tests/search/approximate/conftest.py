"""The calibration that the tests of calibrations share."""

from tests.evaluation.calibration.conftest import accepted

__all__ = ["accepted"]
