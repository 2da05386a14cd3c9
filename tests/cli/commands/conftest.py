"""The command's tests compare with the fit of the function's tests."""

from tests.evaluation.arborkv.conftest import found, shared_engine

__all__ = ["found", "shared_engine"]
