"""θ of ArborKV, found by leaving thoughts out. The procedure itself is in ``rksc_tot.fit.arborkv``."""
