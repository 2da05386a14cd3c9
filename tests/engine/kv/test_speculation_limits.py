"""Budgets of tokens, KV and time end a generation at the same token with and without drafts."""

import asyncio

import pytest

from rksc_tot.core.errors import CacheError
from rksc_tot.engine.base import Account
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.lossless import Lossless
from tests.engine.conftest import PER_TOKEN
from tests.engine.kv.lossless import NONSENSE, POLICIES, ask, grow, run


@pytest.mark.parametrize(
    ("tokens", "of_run"),
    [
        *((tokens, False) for tokens in (1, 50, 159, 160)),
        (50, True),
        pytest.param(160, True, marks=pytest.mark.slow),
    ],
)
def test_a_token_budget_cuts_the_same_branches_as_without_drafts(make, tokens, of_run):
    """Two requests at once, which can draw at most 160 tokens."""

    def account():
        return Account(run=Account(tokens_left=tokens)) if of_run else Account(tokens_left=tokens)

    plain, drafted = account(), account()
    options = {"max_tokens": 20}
    wanted = run(make(), lambda engine: grow(engine, plain, "a", "b", **options))
    engine = make(compress=NONSENSE, lossless=Lossless(horizon=6))
    found = run(engine, lambda engine: grow(engine, drafted, "a", "b", **options))
    assert found == wanted
    assert drafted.ledger.tokens_sampled == plain.ledger.tokens_sampled <= tokens
    assert (drafted.ledger.verified.drafted > 0) == (tokens == 160)


@pytest.fixture(scope="module")
def within(make):
    """What comes of two requests that may hold so many rows, without drafts; and their account."""
    known = {}

    def found(rows):
        if rows not in known:
            account = Account(kv_bytes=rows * PER_TOKEN)
            known[rows] = run(make(), lambda engine: grow(engine, account, "a", "b")), account
        return known[rows]

    return found


@pytest.mark.parametrize("rows", [48, 100, 170])
@pytest.mark.parametrize("policy", [NONSENSE, POLICIES["arborkv"]], ids=["nonsense", "arborkv"])
def test_a_kv_budget_ends_a_search_where_it_ends_without_drafts(make, within, rows, policy):
    (wanted, plain), drafted = within(rows), Account(kv_bytes=rows * PER_TOKEN)
    found = run(make(compress=policy, lossless=Lossless(horizon=6)), lambda engine: grow(engine, drafted, "a", "b"))
    assert found[0] == wanted[0]
    assert drafted.kv_short == plain.kv_short == (rows < 170)
    assert drafted.kv_rows == plain.kv_rows == 0


@pytest.mark.parametrize(("tokens", "rows", "policy"), [
    (90, 2048, POLICIES["arborkv"]), (170, 64, NONSENSE), (170, 2048, POLICIES["arborkv"]),
    *(pytest.param(*which, marks=pytest.mark.slow) for which in ((50, 1, NONSENSE), (400, 2048, NONSENSE))),
], ids=lambda value: getattr(value, "called", None))  # fmt: skip
def test_without_room_for_drafts_the_output_is_the_same(make, wanted, tokens, rows, policy):
    options = {"kv_budget": tokens * PER_TOKEN, "max_batch_tokens": rows}
    engine = make(compress=policy, lossless=Lossless(horizon=6), **options)
    assert run(engine, lambda engine: grow(engine, Account(), "s", k=1))[0] == [wanted[0][0][:1]]
    try:
        plain = run(make(**options), lambda engine: grow(engine, Account(), "a", "b"))
    except CacheError:
        assert tokens < 170
        return
    engine = make(compress=policy, lossless=Lossless(horizon=6), **options)
    assert run(engine, lambda engine: grow(engine, Account(), "a", "b"))[0] == plain[0]
    assert engine.cache.residency.pool.peak <= tokens


@pytest.mark.parametrize(
    ("name", "stop", "tokens"),
    [
        ("e", ("a", "e"), 121),
        ("f", ("s", "n", "y", "x"), 43),
        pytest.param("h", ("s", "n", "y", "x"), 62, marks=pytest.mark.slow),
    ],
)
def test_branches_that_end_early_free_the_same_room_as_without_drafts(make, name, stop, tokens):
    """This number of tokens is just enough, since some branches have ended before the others are long."""

    def least(engine):
        return grow(engine, Account(), name, stop=stop)

    plain = run(make(kv_budget=tokens * PER_TOKEN), least)
    with pytest.raises(CacheError):
        run(make(kv_budget=(tokens - 1) * PER_TOKEN), least)
    engine = make(kv_budget=tokens * PER_TOKEN, compress=NONSENSE, lossless=True)
    assert run(engine, least)[0] == plain[0]


@pytest.mark.parametrize("passes", [3, 17, 40])
def test_a_deadline_cuts_texts_short_and_changes_no_token(make, wanted, passes):
    """The deadline passes after some passes. Tokens are compared, since a cut text may end in half a character."""
    whole = {branch: tokens for _, tokens, branches, *_ in wanted[0][0] for branch in branches}
    engine, account = make(compress=NONSENSE, lossless=Lossless(horizon=6)), Account()
    run_pass = engine.forward.run

    def run_some(*arguments):
        if engine.usage.passes == passes:
            account.deadline = 0.0
        return run_pass(*arguments)

    engine.forward.run = run_some
    found = run(engine, lambda engine: grow(engine, account, "s"))
    assert sum(len(tokens) for _, tokens, *_ in found[0][0]) < sum(map(len, whole.values()))
    for _, tokens, branches, finish, _ in found[0][0]:
        assert finish == "budget"
        assert all(whole[branch][: len(tokens)] == tokens for branch in branches)
    verified = account.ledger.verified
    assert verified.drafted == verified.accepted + verified.rejected


@pytest.mark.parametrize("tokens", [12, 20, 28, 40, 60])
def test_generations_without_room_end_with_a_cache_error(make, tokens):
    engine = make(
        compress=ArborKV(tail=0, sinks=0),
        lossless=Lossless(horizon=8),
        kv_budget=tokens * PER_TOKEN,
        max_batch_tokens=64,
    )

    async def several(engine):
        root = engine.open("say yes", Account())
        writing = (engine.generate([ask(root, name, k=2)], Account()) for name in ("a", "b", "c"))
        return await asyncio.gather(*writing, return_exceptions=True)

    for found in run(engine, several):
        assert not isinstance(found, Exception) or isinstance(found, CacheError)
