"""Finding thresholds that hold, and the file they are kept in. The procedure itself is in ``rksc_tot.evaluation.calibration.calibrate``."""

from rksc_tot.search.approximate.calibration import Calibration, MechanismOutcome, TestStep

__all__ = ["Calibration", "MechanismOutcome", "TestStep"]
