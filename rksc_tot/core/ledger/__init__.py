"""The account of one search: counters of tokens, layers and KV, and of approximations."""

from rksc_tot.core.ledger.approximations import (
    ApproximateScores,
    CompressedKV,
    Diverging,
    Lossy,
    SharedKV,
    Verified,
)
from rksc_tot.core.ledger.ledger import Ledger

__all__ = ["ApproximateScores", "CompressedKV", "Diverging", "Ledger", "Lossy", "SharedKV", "Verified"]
