"""A confined subprocess for code that a model wrote."""

from rksc_tot.tasks.sandbox.guarantees import GUARANTEES, Guarantee, Guarantees
from rksc_tot.tasks.sandbox.run import SandboxResult
from rksc_tot.tasks.sandbox.sandbox import Sandbox

__all__ = ["GUARANTEES", "Guarantee", "Guarantees", "Sandbox", "SandboxResult"]
