"""Find thresholds that hold, and the file that keeps them; ``calibrate`` has the procedure."""

from rksc_tot.search.approximate.calibration import Calibration, MechanismOutcome, TestStep

__all__ = ["Calibration", "MechanismOutcome", "TestStep"]
