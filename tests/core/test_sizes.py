"""KV budgets with units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.sizes import MOST, kv_bytes


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("64MiB", 64 << 20), ("64 mib", 64 << 20), ("20KiB", 20 << 10), ("2GiB", 2 << 30), ("1TiB", 1 << 40),
        ("500MB", 500_000_000), ("3kB", 3000), ("1GB", 10**9), ("1.5GiB", 3 << 29), (" 67108864 ", 67108864),
        ("10B", 10), ("0.5kb", 500), (67108864, 67108864),
    ],
)  # fmt: skip
def test_sizes_are_parsed(written, size):
    assert kv_bytes(written) == size


@given(st.integers(1, 1 << 62))
def test_a_number_of_bytes_is_unchanged(size):
    assert kv_bytes(size) == kv_bytes(str(size)) == size


@pytest.mark.parametrize(
    "wrong",
    [
        "64 potatoes",
        "0",
        "-1MiB",
        "",
        "MiB",
        "1e9",
        "nan",
        "inf",
        "0.1",
        "1,5GiB",
        "64 M",
        "64MiBB",
        "٤MiB",
        0,
        -1,
        1.5,
        None,
        True,
    ],
)
def test_an_invalid_size_is_refused_with_its_value_and_examples(wrong):
    with pytest.raises(ConfigError) as raised:
        kv_bytes(wrong)
    assert repr(wrong) in str(raised.value)
    assert "64MiB" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_size_beyond_all_memory_is_clipped():
    assert kv_bytes("9" * 5000 + ".5TiB") == MOST
