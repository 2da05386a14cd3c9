"""ASKS, sibling merging: which siblings are merged, how votes count them, what is audited."""

import pytest

from rksc_tot import RKSC, Question, Reject, Thought, function_task, load_engine, solve
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.policies.asks import ASKS
from rksc_tot.strategies import BFS

SAME = {"north", "up"}
WORDS = ["north", "up", "east", "bad", "up"]


def labeller(text, question, labels):
    yes = 0.9 if text.rstrip("\n").split("\n")[-1] in SAME else 0.2
    return {"yes": yes, "no": 1 - yes}


def alike(text, other):
    last, last_other = (t.rstrip("\n").split("\n")[-1] for t in (text, other))
    return 0.99 if {last, last_other} <= SAME else 0.1


def engine(words=WORDS, alike=alike, **options):
    drawn = iter(words * 50)
    return MockEngine(lambda text, rng: f"{next(drawn)}\n", labeller, layers=3, alike=alike, **options)


def task(parse=None, **options):
    def checked(problem, path, text):
        if text == "bad":
            raise Reject("bad")
        return Thought(text)

    return function_task(
        prompt=lambda problem: f"{problem}\n",
        is_solution=lambda problem, path: len(path) == 2,
        parse=parse or checked,
        question=lambda problem, path: Question("?", {"yes": 1.0, "no": 0.0}),
        **options,
    )


def search(rksc=None, seen=None, **options):
    return solve(
        task(),
        "go",
        engine=engine(**options),
        strategy=BFS(b=3, k=5),
        rksc=rksc,
        on_event=None if seen is None else seen.append,
    )


def test_without_sibling_merging_only_equal_texts_are_merged():
    result = search()
    assert [node.text for node in result.tree.children(result.tree.root)] == ["north", "up", "east"]
    assert result.ledger.sibling.acted == 0


def test_a_similar_sibling_is_merged_and_its_vote_counts():
    seen = []
    result = search(RKSC(sibling=ASKS(tau=0.9)), seen)
    children = result.tree.children(result.tree.root)
    assert [(node.text, node.count) for node in children] == [("north", 3), ("east", 1)]
    first = [e for e in seen if e.kind == "merged" and e.parent == 0]
    assert [(e.text, e.into, e.sigma) for e in first] == [("up", children[0].id, 0.99)] * 2
    assert result.ledger.sibling.acted >= 1
    assert result.ledger.sibling.tokens >= len("up\n")
    assert result.settings["rksc"]["sibling"] == {"tau": 0.9, "alpha": 1.5}


def test_nothing_is_merged_into_a_rejected_thought():
    result = search(RKSC(sibling=ASKS(tau=0.9)), words=["bad", "north"], alike=lambda a, b: 1.0)
    assert [node.text for node in result.tree.children(result.tree.root)] == ["north"]
    assert result.rejections == {"bad": 5}


def test_thoughts_below_tau_are_not_merged():
    result = search(RKSC(sibling=ASKS(tau=0.995)))
    assert len(result.tree.children(result.tree.root)) == 3
    assert result.ledger.sibling.acted == 0


@pytest.mark.parametrize("sigma", [None, float("nan")])
def test_missing_or_nan_states_are_not_merged(sigma):
    result = search(RKSC(sibling=ASKS(tau=0.1)), alike=lambda a, b: sigma)
    assert result.ledger.sibling.acted == 0


def test_audit_1_audits_every_merge():
    result = search(RKSC(sibling=ASKS(tau=0.9), audit=1.0))
    row = result.ledger.sibling
    assert row.audited == row.acted > 0
    assert row.flips == 0
    assert row.top1 + row.kl == row.audited


def test_the_audit_counts_decisions_that_differ():
    result = search(RKSC(sibling=ASKS(tau=0.5), audit=1.0), words=["north", "east"], alike=lambda a, b: 1.0)
    assert result.ledger.sibling.flips == result.ledger.sibling.audited > 0


@pytest.mark.parametrize("audit", [0.0, 1.0])
def test_every_handle_is_released(audit):
    served = engine()
    solve(task(), "go", engine=served, strategy=BFS(b=3, k=5), rksc=RKSC(sibling=ASKS(tau=0.9), audit=audit))
    assert served.handles == 0


@pytest.mark.parametrize(("tau", "said"), [(0.0, "0.0"), (1.2, "1.2"), (float("nan"), "nan")])
def test_an_invalid_tau_is_refused_with_its_value(tau, said):
    with pytest.raises(ConfigError, match=f"tau.*{said}"):
        ASKS(tau=tau)


def test_an_engine_without_hidden_states_is_refused():
    with pytest.raises(ConfigError, match="mock does not give"):
        solve(task(), "go", engine=MockEngine(lambda text, rng: "x\n"), rksc=RKSC(sibling=ASKS(tau=0.9)))


def test_on_a_real_model_tau_one_changes_nothing_and_a_low_tau_shares():
    strategy = BFS(b=2, k=12)
    with load_engine() as model:
        plain = solve("game24", "4 5 6 10", engine=model, strategy=strategy)
        model.clear()
        strict = solve("game24", "4 5 6 10", engine=model, strategy=strategy, rksc=RKSC(sibling=ASKS(tau=1.0)))
        assert [(n.text, n.score) for n in strict.tree] == [
            (n.text, pytest.approx(n.score, abs=1e-4)) for n in plain.tree
        ]
        model.clear()
        rksc = RKSC(sibling=ASKS(tau=0.5), audit=0.5)
        loose = solve("game24", "4 5 6 10", engine=model, strategy=strategy, rksc=rksc)
        assert loose.ledger.sibling.acted > 0
        assert 0 < loose.ledger.sibling.audited < loose.ledger.sibling.acted
        assert loose.ledger.nodes < plain.ledger.nodes
        model.check_integrity()


def test_a_warning_if_all_siblings_merge_and_the_first_merge_is_audited(caplog):
    words = [f"w{n}" for n in range(6)]
    result = search(RKSC(sibling=ASKS(tau=0.5), audit=1e-9), words=words, alike=lambda a, b: 1.0)
    assert "left one of 5 thoughts after node 0; raise tau, now 0.5" in caplog.text
    assert result.ledger.sibling.audited == 1
    caplog.clear()
    search(RKSC(sibling=ASKS(tau=0.9)))
    assert "left one of" not in caplog.text
