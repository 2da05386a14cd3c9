"""Views, invalid selections, random streams, and selection by score."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rksc_tot.core.errors import CacheError, CompressionError, ConfigError
from rksc_tot.policies.compression.base import PathPolicy, View
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES, compression_policy
from rksc_tot.policies.compression.selection import chosen, highest, selection_rng
from rksc_tot.policies.compression.streaming_llm import Streaming

N, K = 6, 3


class Hostile(PathPolicy):
    """Returns what it was given, or raises it."""

    name: ClassVar[str] = "hostile"
    heads: bool = False
    returns: object = None

    @property
    def per_head(self):
        return self.heads

    def select(self, view, budget, rng):
        if isinstance(self.returns, BaseException):
            raise self.returns
        return self.returns(view) if callable(self.returns) else self.returns


def view(n=N, **more):
    return View(np.arange(n), 0, layers=2, heads=2, **more)


def per_head(row):
    return np.broadcast_to(np.array(row), (2, 2, len(row)))


def spoil(where, n):
    bad = np.array(per_head([0, 1, 2]))
    bad[where] = n
    return bad


@pytest.mark.parametrize(
    ("returns", "heads", "message"),
    [
        (None, False, "returned None, not an array of integers"),
        ([0, 1, 2], False, r"returned \[0, 1, 2\], not an array of integers"),
        (np.array([0.0, 1.0, 2.0]), False, "not an array of integers"),
        (np.array([True, False, True]), False, "not an array of integers"),
        (np.array([0, 1, 2], dtype=object), False, "not an array of integers"),
        (np.array(1), False, r"returned the shape \(\), not \(3,\)"),
        (np.array([[0, 1, 2]]), False, r"returned the shape \(1, 3\), not \(3,\)"),
        (per_head([0, 1, 2]), False, r"returned the shape \(2, 2, 3\), not \(3,\)"),
        (np.array([0, 1, 2]), True, r"returned the shape \(3,\), not \(2, 2, 3\)"),
        (per_head([0, 1, 2])[:1], True, r"returned the shape \(1, 2, 3\), not \(2, 2, 3\)"),
        (np.arange(4), False, "keeps 4 of 6 tokens, more than the required 3"),
        (np.arange(2), False, "keeps 2 of 6 tokens, fewer than the required 3"),
        (np.array([], dtype=int), False, "keeps 0 of 6 tokens, fewer than the required 3"),
        (per_head([0, 1]), True, "keeps 2 of 6 tokens, fewer than the required 3"),
        (np.array([0, 1, 6]), False, "keeps token 6 of 6, counted from 0"),
        (np.array([-1, 1, 2]), False, "keeps token -1 of 6"),
        (np.array([0, 1, 2**64 - 1], dtype=np.uint64), False, "keeps token 18446744073709551615 of 6"),
        (spoil((1, 1, 2), 7), True, "keeps token 7 of 6"),
        (np.array([0, 2, 2]), False, "keeps a token twice"),
        (np.ma.array([0, 1, 2], mask=True), False, "not an array of integers"),
        (spoil((0, 1, 0), 1), True, "keeps a token twice"),
        (np.array([0, 2, 1]), False, "tokens that do not ascend"),
        (np.array([2, 1, 0], dtype=np.uint8), False, "tokens that do not ascend"),
        (spoil((1, 0, 2), 0), True, "tokens that do not ascend"),
        (ValueError("no idea"), False, "select, with 6 tokens and a budget of 3, raised ValueError: no idea"),
        (SystemExit(3), False, "raised SystemExit: 3"),
        (lambda view: view.positions.fill(0), False, "raised ValueError: .*read-only"),
        (lambda view: view.attention.sort(), False, "raised ValueError: .*read-only"),
        (lambda view: setattr(view, "prompt", 3), False, "raised FrozenInstanceError"),
    ],
)
def test_an_invalid_selection_is_refused_with_policy_and_fault(returns, heads, message):
    policy = Hostile(heads=heads, returns=returns)
    with pytest.raises(CompressionError, match=f"^compression policy 'hostile':? .*{message}") as caught:
        chosen(policy, view(attention=np.ones((2, 2, N))), K, selection_rng(0))
    assert isinstance(caught.value, CacheError)
    assert "\n" not in str(caught.value)


def test_an_error_of_per_head_is_refused_too():
    class Undecided(Hostile):
        @property
        def per_head(self):
            raise ZeroDivisionError

    with pytest.raises(CompressionError, match=r"'hostile': .*raised ZeroDivisionError"):
        chosen(Undecided(returns=np.arange(3)), view(), K, selection_rng(0))


@pytest.mark.parametrize(
    ("attention", "hint"), [(None, "override heeds_attention"), (np.ones((2, 2, N)), "correct the policy")]
)
def test_a_policy_without_measured_attention_gets_a_hint(attention, hint):
    policy = Hostile(returns=lambda view: view.attention.mean() + view.attention.no_such)
    with pytest.raises(CompressionError, match=f"raised AttributeError: .* - {hint}"):
        chosen(policy, view(attention=attention), K, selection_rng(0))


def test_a_policy_without_a_name_is_named_by_its_class():
    class Nameless(Hostile):
        name: ClassVar[str] = ""

    with pytest.raises(CompressionError, match=r"^compression policy 'Nameless' returned None"):
        chosen(Nameless(), view(), K, selection_rng(0))


def test_ctrl_c_in_a_policy_passes_unchanged():
    with pytest.raises(KeyboardInterrupt):
        chosen(Hostile(returns=KeyboardInterrupt()), view(), K, selection_rng(0))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_any_integer_dtype_is_converted_to_int64(dtype):
    kept = chosen(Hostile(returns=np.array([0, 2, 5], dtype=dtype)), view(), K, selection_rng(0))
    assert kept.tolist() == [0, 2, 5]
    assert kept.dtype == np.int64


def test_a_selection_from_no_tokens_is_empty():
    nothing = np.array([], dtype=int)
    assert chosen(Hostile(returns=nothing), view(0), K, selection_rng(0)).shape == (0,)
    assert chosen(Hostile(returns=nothing), view(), 0, selection_rng(0)).shape == (0,)


def test_a_view_is_read_only_and_its_source_is_not():
    positions, attention = np.arange(3), np.zeros((1, 1, 3))
    seen = View(positions, 1, 1, 1, attention)
    assert len(seen) == 3
    assert not seen.positions.flags.writeable
    assert not seen.attention.flags.writeable
    positions[0] = attention[0, 0, 0] = 7
    assert (seen.positions[0], seen.attention[0, 0, 0]) == (7, 7)


# -- the choice by score -----------------------------------------------------------------------------------------------


@given(
    arrays(
        float, st.tuples(st.integers(1, 2), st.integers(0, 12)), elements=st.sampled_from([0, 1, 2, np.inf, -np.inf])
    ),
    st.integers(0, 14),
    st.integers(0, 14),
)
def test_the_first_and_the_highest_stay_and_ties_go_to_later_tokens(scores, budget, first):
    kept = highest(scores, budget, first)
    n = scores.shape[-1]
    for row, stays in zip(scores, kept, strict=True):
        spared = [(at < first, row[at] if at >= first else 0, at if at >= first else -at, at) for at in range(n)]
        assert stays.tolist() == sorted(at for *_, at in sorted(spared, reverse=True)[:budget])


# -- names and generators ----------------------------------------------------------------------------------------------


def test_a_policy_is_given_by_name_or_object_or_none():
    assert compression_policy(None) is None
    assert compression_policy("random_attention") == RandomAttention()
    assert {"arborkv", "random_attention", "snapkv", "streaming"} <= set(COMPRESSION_POLICIES.names())


@pytest.mark.parametrize("named", ["h2o", "", "SnapKV", 3, False])
def test_a_value_that_is_not_a_policy_is_refused(named):
    with pytest.raises(ConfigError) as raised:
        compression_policy(named)
    assert repr(named) in str(raised.value)
    assert "random_attention" in str(raised.value)


def test_a_policy_class_instead_of_an_object_is_refused():
    with pytest.raises(ConfigError, match="compress is the class RandomAttention - give an object of it"):
        compression_policy(RandomAttention)


@pytest.mark.parametrize(
    ("named", "call", "module"),
    [
        ("random_attention:budget=24", "RandomAttention(budget=24)", "rksc_tot.policies.compression.random_attention"),
        (
            "streaming:budget=24,recent=2",
            "Streaming(budget=24, recent=2)",
            "rksc_tot.policies.compression.streaming_llm",
        ),
        ("arborkv:theta=[1,0,1]", "ArborKV(setting=value)", "rksc_tot.policies.compression.arborkv"),
        ("mine:Last:budget=9", "Last(budget=9)", "mine"),
        ({"name": "streaming"}, "Streaming()", "rksc_tot.policies.compression.streaming_llm"),
        (
            {"name": "random_attention", "sets": "one"},
            "RandomAttention(sets='one')",
            "rksc_tot.policies.compression.random_attention",
        ),
    ],
)
def test_a_name_with_settings_is_refused_with_the_class_to_import(named, call, module):
    with pytest.raises(ConfigError) as raised:
        compression_policy(named)
    made = call.partition("(")[0]
    assert str(raised.value) == (f"compress is {named!r} - in Python write {call}, after from {module} import {made}")


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("lru:budget=9", "there is no compression policy 'lru:budget=9' - there are arborkv"),
        ({"name": "lru"}, "compress is {'name': 'lru'} - name one of arborkv"),
        ({"name": 3}, "compress is {'name': 3} - name one of arborkv"),
        ({}, "compress is {} - name one of arborkv"),
    ],
)
def test_an_unknown_name_with_settings_is_refused_as_unknown(named, says):
    with pytest.raises(ConfigError) as raised:
        compression_policy(named)
    assert str(raised.value).startswith(says)


class Before(Streaming):
    def __init__(self, x=1):
        self.x = x
        super().__init__()


class After(Streaming):
    def __init__(self, x=1):
        super().__init__()
        self.x = x


@pytest.mark.parametrize("policy", [Before, After])
def test_a_policy_that_sets_attributes_gets_a_hint(policy):
    for make in (policy, lambda: COMPRESSION_POLICIES.make(f"{__name__}:{policy.__name__}")):
        with pytest.raises(ConfigError) as raised:
            make()
        assert str(raised.value) == (
            f"{policy.__name__} is frozen, its x cannot be set - settings are annotated fields of the class, such as "
            "x: int = 1, without an __init__"
        )


def test_policies_are_frozen():
    with pytest.raises(ConfigError, match="is frozen, its"):
        RandomAttention().budget = 7


def test_a_generator_depends_on_its_names_only():
    names = [(seed, path, times) for seed in (0, 1) for path in ("a", "b") for times in (0, 1)]
    once = {name: selection_rng(*name).random(3).tolist() for name in names}
    again = {name: selection_rng(*name).random(3).tolist() for name in reversed(names)}
    assert once == again
    assert len(set(map(tuple, once.values()))) == len(names)
