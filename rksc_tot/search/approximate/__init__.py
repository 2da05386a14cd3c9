"""The approximations of RKSC in one search, and their audits."""
