"""Lines of a report on compressed KV, drafts and offload; none if nothing happened."""

import io

import pytest
from rich.console import Console

from rksc_tot.api.result import Result
from rksc_tot.core.ledger import ApproximateScores, CompressedKV, Ledger, Verified
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.views.terminal import report


def shown(ledger=None, inexact=0, **numerics):
    tree = ReasoningTree()
    root = tree.add()
    for n in range(5):
        tree.add(root, exact=n >= inexact)
    console = Console(file=io.StringIO(), width=200)
    result = Result(
        problem="p", answer="a", correct=True, best=0, path=["one"], stopped="finished", tree=tree, ledger=ledger or Ledger(),
        rejections={}, settings={"strategy": "bfs"}, numerics={"model": "m", **numerics},
    )  # fmt: skip
    console.print(report(result))
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("ledger", "says"),
    [
        (
            Ledger(compression=CompressedKV(acted=3, tokens=40, rows=7)),
            "KV compressed 3 times, 40 tokens dropped, 7 rows computed on compressed KV forward",
        ),
        (
            Ledger(compression=CompressedKV(acted=3, tokens=40, rows=7, audited=4, flips=1, kl=0.5)),
            "; audited 4: mean KL 0.125 nats, 1 next tokens differ",
        ),
        (
            Ledger(scores=ApproximateScores(acted=3)),
            "scores 3 label questions answered on approximate KV forward",
        ),
        (
            Ledger(scores=ApproximateScores(acted=3, audited=2, kl=0.5, flips=1)),
            "answered on approximate KV; audited 2: mean KL 0.250 nats, 1 likeliest labels differ forward",
        ),
        (
            Ledger(verified=Verified(drafted=40, accepted=30, rejected=10, rounds=2)),
            "drafted 40 tokens in 2 rounds, 30 accepted (75%)",
        ),
        (
            Ledger(evicted_tokens=9, recomputed_tokens=2, restored_tokens=5),
            "MiB; 9 tokens evicted, 2 recomputed, 5 copied back",
        ),
        (Ledger(evicted_tokens=9), "MiB; 9 tokens evicted seconds"),
        (Ledger(restored_tokens=5), "MiB; 5 copied back seconds"),
    ],
)
def test_compression_scores_and_drafts_have_a_line_each(ledger, says):
    assert says in shown(ledger)


def test_nodes_that_are_not_exact_are_counted():
    assert "0 rejected, 2 not exact" in shown(inexact=2)


@pytest.mark.parametrize(("flags", "said"), [
    ({}, None), ({"exact": False}, "written on"), ({"score_exact": False}, "scored on"),
    ({"exact": False, "score_exact": False}, "written and scored on"),
])  # fmt: skip
def test_an_answer_on_approximate_kv_is_marked(flags, said):
    tree = ReasoningTree()
    tree.add(tree.add(), **flags)
    console = Console(file=io.StringIO(), width=200)
    console.print(report(Result(
        problem="p", answer="a", correct=True, best=1, path=["one"], stopped="finished", tree=tree, ledger=Ledger(),
        rejections={}, settings={}, numerics={},
    )))  # fmt: skip
    assert f"answer: a  (right){f'  {said} approximate KV' if said else ''}\n" in console.file.getvalue()


@pytest.mark.parametrize(("compression", "why"), [
    ({"name": "streaming", "budget": 9}, "never: no path outgrew its budget"),
    ({"name": "arborkv"}, "never: the KV budget was never full of thoughts that may be compressed"),
])  # fmt: skip
def test_a_policy_that_never_acted_has_a_reason(compression, why):
    assert why in shown(compression=compression)


def test_the_settings_show_compression_and_offload():
    policy = {"name": "streaming", "budget": 9}
    assert "strategy bfs" in (said := shown(compression=policy, lossless={"horizon": 32}, offload="disk"))
    assert "compression streaming(budget=9), lossless, offload to disk, model m" in said


def test_a_policy_that_never_acted_is_reported():
    assert "KV compressed never: " in shown(compression={"name": "streaming"})
    assert "never" not in shown(
        Ledger(compression=CompressedKV(acted=1, tokens=1, rows=1)), compression={"name": "streaming"}
    )


def test_mechanisms_that_were_off_are_not_shown():
    said = shown(Ledger(recomputed_tokens=3), compression=None, lossless=False, offload=None)
    for word in (
        "not exact",
        "reduced",
        "drafted",
        "evicted",
        "recomputed",
        "copied",
        "compression",
        "lossless",
        "offload",
    ):
        assert word not in said
