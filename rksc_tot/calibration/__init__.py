"""Finding thresholds that hold, and the file they are kept in. The procedure itself is in ``rksc_tot.calibration.run``."""

from rksc_tot.calibration.artefact import Calibration, Outcome, Step

__all__ = ["Calibration", "Outcome", "Step"]
