"""``python -m rksc_tot.cli``."""

from rksc_tot.cli import main

main()
