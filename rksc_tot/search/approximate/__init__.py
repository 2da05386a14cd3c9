"""Every approximation of RKSC that a search may use, and its audit."""
