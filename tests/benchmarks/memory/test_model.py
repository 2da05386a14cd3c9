"""Claims about a real model are compared with its texts."""

import pytest

from benchmarks.memory.model import findings, further


def far(random_attention, others, unpinned):
    names = ("snapkv", "snapkv_kernel1", "streaming")
    return {
        ("random_attention", True, 96): random_attention,
        ("random_attention", False, 96): unpinned,
        **{(name, True, 96): others for name in names},
    }


@pytest.mark.parametrize(("ours", "verdict"), [
    ([[0.2, 0.3], [0.4]], "refuted by snapkv, snapkv_kernel1, streaming at 96"),
    ([[0.1, 0.2], [0.2]], "reproduced at 96"),
    ([[0.0, 0.2], [0.5]], "not told apart at 96"),
])  # fmt: skip
def test_a_claim_about_a_real_model_is_compared_with_the_texts(ours, verdict):
    said = findings(far(ours, [[0.1, 0.2], [0.3]], [[0.9, 0.9], [0.9]]), [96])
    assert said["finding.random_pinned_at_least_snapkv_and_streaming"] == verdict
    assert said["finding.further_off_without_the_pin"] == "reproduced at 96"
    said = findings(far(ours, ours, ours), [96])
    assert said["finding.further_off_without_the_pin"] == "not told apart at 96"


def test_a_difference_is_paired_by_position_and_skips_texts_without_positions():
    found = further([[1.0, 2.0], [], [3.0]], [[0.5, 1.0], [], [3.0]])
    assert found == {"mean": 0.5, "low": 0.0, "high": 0.75}
