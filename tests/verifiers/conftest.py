from tests.evaluation.calibration.conftest import accepted

__all__ = ["accepted"]
