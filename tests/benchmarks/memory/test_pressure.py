"""Claims of papers are compared with intervals."""

import pytest

from benchmarks.memory.paths import KINDS
from benchmarks.memory.pressure import findings

SHARES = "solved", "solved.low", "solved.high", "memory"


def recalled(random, other, prompt=(1.0, 0.1), once=0.0):
    point = {
        name: dict(zip(SHARES, (share, share - 0.05, share + 0.05, 0.3), strict=True))
        for name, share in (random, other)
    }
    kinds = dict.fromkeys(KINDS, 1.0)
    return {
        **{f"curve.paths.{name}.64": point[random[0]] for name in ("random_attention",)},
        **{f"curve.paths.{name}.64": point[other[0]] for name in ("snapkv", "snapkv_kernel1", "streaming")},
        "curve.paths.random_attention_unpinned.64": point[other[0]],
        "recall.random_attention.pinned": kinds | {"prompt": prompt[0], "once": once},
        "recall.random_attention.unpinned": kinds | {"prompt": prompt[1]},
    }


@pytest.mark.parametrize(("random", "other", "verdict"), [
    (0.8, 0.8, "reproduced at 64"), (0.8, 0.82, "not told apart at 64"), (0.6, 0.8, "refuted at 64"),
    (0.0, 0.0, "nothing is solved by any at 64"), (0.1, 0.0, "reproduced at 64"),
])  # fmt: skip
def test_a_claim_is_compared_with_the_intervals(random, other, verdict):
    said = findings(recalled(("random", random), ("other", other)))
    assert said["finding.random_pinned_at_least_snapkv_and_streaming"] == f"paths: {verdict}"


def test_a_claim_is_compared_with_the_searches():
    found = recalled(("r", 0.8), ("o", 0.7))
    for name, solved in (("random_attention", 0.3), ("snapkv", 0.7), ("streaming", 0.3)):
        found[f"curve.games.{name}.8"] = dict(zip(SHARES, (solved, solved - 0.05, solved + 0.05, 0.9), strict=True))
    said = findings(found)["finding.random_pinned_at_least_snapkv_and_streaming"]
    assert said == "paths: reproduced at 64; games: refuted at 8"


def test_a_claim_of_collapse_or_loss_that_does_not_occur_is_refuted():
    said = findings(recalled(("r", 0.8), ("o", 0.7), prompt=(1.0, 0.9), once=0.9))
    assert said["finding.collapses_without_the_pin"].startswith("refuted for ")
    assert said["finding.stated_once_is_lost"].startswith("refuted: ")
    said = findings(recalled(("r", 0.8), ("o", 0.7)))
    assert said["finding.collapses_without_the_pin"].startswith("reproduced for ")
    assert said["finding.stated_once_is_lost"].startswith("reproduced: ")
