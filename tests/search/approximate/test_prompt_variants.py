"""Prompt variants: which branches start from them, and which nodes are marked as approximate."""

import pytest

from rksc_tot import RKSC, check_task, function_task, load_engine, solve
from rksc_tot.core.errors import ConfigError, TaskError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.policies.asks import PromptReuse
from rksc_tot.strategies import BFS, BestOfN
from rksc_tot.tasks.game24.task import Game24

OTHERS = ("Say: go\n", "Please go\n")


def task(prompt_variants=OTHERS, **options):
    return function_task(
        prompt=lambda problem: f"{problem}\n",
        prompt_variants=lambda problem: prompt_variants,
        is_solution=lambda problem, path: len(path) == 2,
        **options,
    )


def echo(text, rng):
    """Writes after which prompt it stands, and a random word."""
    return f"{text.splitlines()[0]} {rng.randrange(10**6)}\n"


def first_level(result):
    return [(node.text, node.branch) for node in result.tree.children(result.tree.root)]


def test_branches_after_the_root_start_from_all_prompt_variants_in_turn():
    engine = MockEngine(echo)
    result = solve(task(), "go", engine=engine, strategy=BFS(b=1, k=7))
    by_branch = {int(branch): text.rsplit(" ", 1)[0] for text, branch in first_level(result)}
    prompts = ["go", "Say: go", "Please go"]
    assert by_branch == {n: prompts[n % 3] for n in range(7)}
    assert engine.handles == 0


def test_prompt_variants_do_not_change_the_random_streams():
    plain = solve(task(()), "go", engine=MockEngine(echo), strategy=BFS(b=1, k=7))
    dealt = solve(task(), "go", engine=MockEngine(echo), strategy=BFS(b=1, k=7))
    numbers = [{branch: text.split()[-1] for text, branch in first_level(result)} for result in (plain, dealt)]
    assert numbers[0] == numbers[1]


def test_thoughts_continue_from_their_own_prompt_variant():
    result = solve(task(), "go", engine=MockEngine(echo), strategy=BestOfN(n=3))
    for node in result.tree:
        if node.depth == 2:
            parent = result.tree[node.parent]
            assert node.text.rsplit(" ", 1)[0] == parent.text.rsplit(" ", 1)[0]


def test_fewer_branches_than_variants_use_the_first_variants():
    result = solve(task(), "go", engine=MockEngine(echo), strategy=BFS(b=1, k=2))
    assert [text.rsplit(" ", 1)[0] for text, _ in first_level(result)] == ["go", "Say: go"]


def test_a_prompt_variant_too_long_for_the_context_is_left_out(caplog):
    engine = MockEngine(echo, context=60)
    result = solve(task(("x" * 80 + "\n",)), "go", engine=engine, strategy=BFS(b=1, k=3))
    assert {text.rsplit(" ", 1)[0] for text, _ in first_level(result)} == {"go"}
    assert "left out" in caplog.text
    assert engine.handles == 0


@pytest.mark.parametrize(
    ("prompt_variants", "said"),
    [("one text", "not a list of prompts"), (("", "x"), "is empty"), ((7,), "neither a string"), (None, "TypeError")],
)
def test_invalid_prompt_variants_are_refused(prompt_variants, said):
    with pytest.raises(TaskError, match=said):
        solve(task(prompt_variants), "go", engine=MockEngine(echo))
    assert any(
        f.level == "error" and f.what == "prompt_variants" and said in f.message
        for f in check_task(task(prompt_variants), "go")
    )


class Twice(Game24):
    """The same numbers after another first word."""

    def prompt_variants(self, problem):
        return [f"solve {' '.join(map(str, problem))}\n"]


def test_prompt_variants_are_exact_without_prompt_reuse():
    with load_engine() as engine:
        result = solve(Twice(), "4 5 6 10", engine=engine, strategy=BFS(b=2, k=8))
        assert all(node.exact for node in result.tree)
        assert result.ledger.prompt_reuse.acted == 0
        engine.check_integrity()


def test_only_nodes_below_reused_kv_are_inexact():
    loose = PromptReuse(threshold=None, least=2, recompute=0, audit=1.0)
    with load_engine() as engine:
        plain = solve(Twice(), "4 5 6 10", engine=engine, strategy=BFS(b=2, k=8))
        engine.clear()
        result = solve(Twice(), "4 5 6 10", engine=engine, strategy=BFS(b=2, k=8), rksc=RKSC(prompt_reuse=loose))
        first = result.tree.children(result.tree.root)
        assert {node.exact for node in first} == {True, False}
        assert all(node.exact == (int(node.branch) % 2 == 0) for node in first)
        assert all(node.exact == result.tree[node.parent].exact for node in result.tree if node.depth > 1)
        row = result.ledger.prompt_reuse
        assert (row.acted, row.audited) == (1, 1)
        assert row.tokens > 0
        assert result.settings["rksc"]["prompt_reuse"]["threshold"] is None
        engine.clear()
        again = solve(
            Twice(), "4 5 6 10", engine=engine, strategy=BFS(b=2, k=8)
        )  # approximate KV is not reused by an exact search
        assert [(n.text, n.score) for n in again.tree] == [(n.text, n.score) for n in plain.tree]
        engine.check_integrity()


def test_prompt_reuse_on_an_engine_without_kv_is_refused():
    class Remote(MockEngine):
        similarity = divergence = open_variant = None

    with pytest.raises(ConfigError, match="ASKS needs access to the KV"):
        solve(task(), "go", engine=Remote(echo), rksc=RKSC(prompt_reuse=PromptReuse(threshold=None)))


def test_only_needed_prompt_variants_are_opened():
    engine = MockEngine(echo)
    opened = []
    engine.open, plain = lambda prompt, account: opened.append(prompt) or plain(prompt, account), engine.open
    solve(task(), "go", engine=engine, strategy=BFS(b=1, k=1))
    assert opened == ["go\n"]


def test_strings_and_chat_messages_do_not_mix():
    mixed = task(([{"role": "user", "content": "go"}],))
    with pytest.raises(TaskError, match="mix strings and chat messages"):
        solve(mixed, "go", engine=MockEngine(echo))


def test_prompt_reuse_without_prompt_variants_is_refused():
    with pytest.raises(ConfigError, match="the task has no prompt variants"):
        solve(
            task(()),
            "go",
            engine=MockEngine(echo, layers=2),
            rksc=RKSC(prompt_reuse=PromptReuse(threshold=None)),
        )


def test_a_warning_says_why_reused_kv_is_rejected(caplog):
    strict = PromptReuse(gate="sigma", threshold=1, least=2)
    with load_engine() as engine:
        result = solve(Twice(), "4 5 6 10", engine=engine, strategy=BFS(b=2, k=8), rksc=RKSC(prompt_reuse=strict))
    assert "sigma is" in caplog.text
    assert (result.ledger.prompt_reuse.acted, result.ledger.prompt_reuse.sent_back) == (0, 1)
    assert all(node.exact for node in result.tree)
