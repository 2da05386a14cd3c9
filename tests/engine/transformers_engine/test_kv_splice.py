"""The overlap of a prompt and its variant."""

from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.engine.transformers_engine.kv_splice import overlap


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_an_overlap_is_the_longest_common_run_before_the_last_token(reference, branch):
    head, source, target, length = overlap(reference, branch)
    assert reference[:head] == branch[:head]
    assert reference[source : source + length] == branch[target : target + length]
    assert head <= source
    assert head <= target
    assert max(head, target + length) < len(branch)
    longest = max(
        (n for i in range(head, len(reference)) for j in range(head, len(branch)) for n in range(1, len(branch) - j)
         if reference[i : i + n] == branch[j : j + n] and i + n <= len(reference)),
        default=0,
    )  # fmt: skip
    assert length == longest
