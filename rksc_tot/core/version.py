"""The version of this package, as its installed metadata have it."""

from importlib.metadata import version

__version__ = version("rksc_tot")
