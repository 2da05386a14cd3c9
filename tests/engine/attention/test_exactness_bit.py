"""``exact`` means that all was computed on the KV of the full path. Other logits are those of the visible KV."""

import random

import pytest

from rksc_tot import load_engine, solve
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.strategies import BFS
from tests.engine.attention.random_program import ONE_SET, PER_HEAD, play

CASES = [
    *(("llama", "fast", policy) for policy in (*ONE_SET, *PER_HEAD)),
    ("gpt2", "fast", "random_attention, one set"),
    *((family, "fast", "arborkv") for family in ("mistral", "gemma2")),
    ("qwen2", "fast", "snapkv"),
    ("llama", "mask", "random_attention"),
    ("gemma2", "mask", "arborkv, lossy"),
    ("mistral", "mask", "streaming"),
    *(
        pytest.param(family, "fast", "random_attention, one set", marks=pytest.mark.slow)
        for family in ("qwen2", "mistral", "gemma2")
    ),
]


@pytest.mark.parametrize(("family", "route", "policy"), CASES)
async def test_exact_results_equal_those_of_full_kv_and_no_others_are_exact(family, route, policy):
    program = await play(family, route, policy, f"{family}{policy}", 45 if route == "mask" else 30)
    assert any(program.seen)
    assert all(program.seen) == (policy == "arborkv")
    assert all(program.answers) or policy != "arborkv"
    assert (program.shadow.inexact == 0) == (policy == "arborkv")
    assert program.shadow.looked > 25


@pytest.mark.parametrize("policy", [
    "arborkv", "random_attention",
    *(pytest.param(policy, marks=pytest.mark.slow) for policy in ("arborkv, lossy", "streaming")),
])  # fmt: skip
async def test_kv_restored_from_a_store_is_exact(policy):
    program = await play("llama", "fast", policy, f"back {policy}", 40, offload="cpu")
    assert program.shadow.restored > 0
    assert all(program.seen) == (policy == "arborkv")


POLICIES = (*ONE_SET, *PER_HEAD)
OFTEN = (("arborkv", 2), ("arborkv, lossy", 3), ("snapkv", 5))  # in every run


@pytest.mark.parametrize(("policy", "seed"), [
    *OFTEN,
    *(
        pytest.param(policy, seed, marks=pytest.mark.slow)
        for policy in POLICIES for seed in (POLICIES.index(policy), *range(6, 20)) if (policy, seed) not in OFTEN
    ),
])  # fmt: skip
async def test_exact_results_are_exact_for_any_division_into_passes(policy, seed):
    rng = random.Random(seed)
    rows = rng.choice((1, 3, 7, 64))
    assert any(
        (await play("llama", "fast", policy, seed, 25, max_batch_tokens=rows, offload=rng.choice((None, "cpu")))).seen
    )


SEARCH = {"strategy": BFS(b=2, k=6), "verifier": "lm_value"}


@pytest.fixture(scope="module")
def plain():
    with load_engine() as engine:
        return solve("game24", "4 5 6 10", engine=engine, **SEARCH)


@pytest.mark.parametrize("rehydrate", [True, False])
def test_nodes_of_the_embedded_model_tell_whether_they_are_exact(plain, rehydrate):
    compress = ArborKV(tail=0, sinks=0, rehydrate=rehydrate)
    with load_engine(compress=compress, kv_budget=plain.ledger.peak_kv_bytes // 2) as engine:
        found = solve("game24", "4 5 6 10", engine=engine, **SEARCH)
    assert found.ledger.compression.acted > 0
    assert all(node.exact for node in found.tree) == rehydrate
    assert (found.ledger.compression.rows == 0) == rehydrate
    if rehydrate:
        assert [(n.text, n.score) for n in found.tree] == [(n.text, n.score) for n in plain.tree]
    for node in found.tree:
        above = found.tree[node.parent] if node.parent is not None else node
        assert above.exact or not node.exact
