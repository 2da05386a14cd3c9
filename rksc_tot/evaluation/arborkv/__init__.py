"""θ of ArborKV, found by leaving thoughts out. The procedure itself is in ``rksc_tot.evaluation.arborkv.fit``."""
