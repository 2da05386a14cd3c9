from tests.calibration.conftest import accepted

__all__ = ["accepted"]
