import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from rksc_tot.api.solve import solve
from rksc_tot.cli.commands import app as cli
from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine import load_engine
from rksc_tot.evaluation import Comparison, Row
from rksc_tot.evaluation.comparison_rows import chains_for
from rksc_tot.evaluation.contenders import EXACT, LINEUPS, Contender, choose_contenders
from rksc_tot.evaluation.intervals import wilson
from rksc_tot.evaluation.problems import choose_problems
from rksc_tot.strategies import STRATEGIES
from rksc_tot.tasks import load_task
from rksc_tot.tasks.game24.puzzles import all_puzzles
from rksc_tot.tasks.game24.task import Game24
from rksc_tot.verifiers import VERIFIERS
from rksc_tot.views.terminal.comparison_table import comparison_table
from tests.game24_player import player

PUZZLES = ["4 5 6 10", "1 2 3 4", "2 5 8 11"]
FIGURES = {
    "strategy", "solved", "n", "low", "high", "tokens", "prefill_tokens", "distinct_tokens", "prefill_saved", "verifier_tokens",
    "seconds",
}  # fmt: skip


def rows(problems, contenders, **options):
    comparison = Comparison(problems, player, **options)
    done = []
    for contender in contenders:
        done.append(comparison.run(contender, done))
    return {row.strategy: row for row in done}


def without_time(table):
    return [row.model_dump(exclude={"seconds"}) for row in table.values()]


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share_and_lies_within_0_and_1(counts):
    solved, n = counts
    low, high = wilson(solved, n)
    assert 0 <= low <= high <= 1
    if n:
        assert low <= solved / n + 1e-12
        assert high >= solved / n - 1e-12


def test_the_interval_is_wilsons():
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="3 solved of 2"):
        wilson(3, 2)


@pytest.mark.parametrize("contender", [c for lineup in LINEUPS.values() for c in lineup], ids=lambda c: c.label)
def test_every_contender_of_a_lineup_exists(contender):
    load_task(contender.task)
    STRATEGIES.make(contender.strategy, **contender.options)
    assert (contender.verifier == EXACT) == ("checker" in contender.label)
    if contender.verifier not in (None, EXACT):
        VERIFIERS.make(contender.verifier)


def test_labels_are_unique_and_rows_that_others_need_come_first():
    for lineup in LINEUPS.values():
        labels = [contender.label for contender in lineup]
        assert len(set(labels)) == len(labels)
        for at, contender in enumerate(lineup):
            assert {contender.equals, contender.price} - {None} <= set(labels[:at])


def test_a_task_without_a_lineup_has_every_strategy():
    assert [contender.strategy for contender in choose_contenders("game24-chain")] == STRATEGIES.names()


@pytest.mark.parametrize("contender", LINEUPS["game24"][:3], ids=lambda c: c.label)
def test_a_row_runs_with_the_settings_of_its_label(contender):
    row = Comparison(PUZZLES[:1], player).run(contender)
    alone = solve(contender.task, PUZZLES[0], engine=player(), strategy=contender.strategy)
    assert row.settings == alone.settings
    for setting in re.findall(r"(\w)=(\d+)", contender.label):
        assert setting in [(name, str(value)) for name, value in row.settings["strategy"].items()]


def test_a_warning_of_a_search_begins_with_its_problem(monkeypatch, caplog):
    def fails(self, problem, answer):
        raise ValueError

    monkeypatch.setattr(Game24, "check", fails)
    Comparison(PUZZLES, player).run(choose_contenders("game24", ["CoT greedy"])[0])
    said = [record.getMessage() for record in caplog.records]
    assert sorted(line.partition(": check raised ValueError")[0] for line in said) == sorted(PUZZLES)
    solve("game24", PUZZLES[0], engine=player())
    assert caplog.records[-1].getMessage().startswith("check raised ValueError")


@pytest.fixture(scope="module")
def table():
    return rows(PUZZLES, choose_contenders("game24"))


def test_the_lineup_gives_one_row_each_with_all_figures(table):
    assert list(table) == [contender.label for contender in choose_contenders("game24")]
    for row in table.values():
        assert set(row.model_dump()) >= FIGURES
        assert row.n == 3
        assert row.low <= row.solved / row.n <= row.high
        assert row.prefill_tokens == row.distinct_tokens > 0
        assert not row.failures
    assert table["ToT-BFS b=5"].solved == 3


def test_best_of_n_spends_as_many_tokens_as_the_tree_search(table):
    tot, best = table["ToT-BFS b=5"], table["best-of-n with an exact checker, at equal tokens"]
    assert best.settings["strategy"]["n"] > 1
    assert best.spent("sampled") == pytest.approx(tot.spent("sampled"), rel=0.1)
    best = table["best-of-n with an exact checker, at equal computed tokens"]
    assert best.spent("computed") == pytest.approx(tot.spent("computed"), rel=0.15)


@pytest.mark.parametrize("power", [1.0, 0.8, 0.6])
def test_the_number_of_chains_meets_the_goal_if_further_chains_cost_less(power):
    costs = [(20, 20**power)]
    for _ in range(3):
        n = chains_for(80, costs)
        costs.append((n, n**power))
    assert costs[-1][1] == pytest.approx(80, rel=0.1)


@pytest.mark.parametrize("costs", [[(1, 0.0)], [(20, 3.0), (1, 3.0)], [(20, 9.0)]])
def test_there_is_at_least_one_chain_whatever_its_price(costs):
    assert chains_for(0.0, costs) == 1


def test_a_row_without_the_rows_it_needs_is_refused_before_any_runs():
    best = "best-of-n with an exact checker, at equal tokens"
    with pytest.raises(ConfigError, match="needs 'ToT-BFS b=5' and 'self-consistency n=20'"):
        Comparison(PUZZLES, player).run(next(c for c in choose_contenders("game24") if c.label == best))
    with pytest.raises(ConfigError, match="needs 'ToT-BFS b=5' and 'self-consistency n=20'"):
        choose_contenders("game24", ["CoT greedy", best])
    assert len(choose_contenders("game24", ["ToT-BFS b=5", "self-consistency n=20", best])) == 3


def test_rows_without_cost_still_price_a_row():
    contender = Contender("c", "game24-chain", "best_of_n", equals="a", price="b")
    row = Comparison(PUZZLES, player).run(contender, [Row(strategy="a"), Row(strategy="b")])
    assert row.settings["strategy"]["n"] == 1


@pytest.mark.parametrize("again", ["4 5 6 10", "10 6 5 4", "4,5,6,10"])
def test_repeated_problems_are_refused(again):
    with pytest.raises(ConfigError, match=f"'{again}' is the same problem as '4 5 6 10'"):
        rows([*PUZZLES, again], choose_contenders("game24", ["CoT greedy"]))


def test_figures_do_not_depend_on_concurrency_on_the_embedded_model():
    def table(concurrency):
        comparison = Comparison(PUZZLES[:2], load_engine, concurrency=concurrency)
        contender = Contender("narrow", "game24", "bfs", options={"b": 2, "k": 8})
        return comparison.run(contender).model_dump(exclude={"seconds"})

    assert table(1) == table(2)


def test_an_interrupted_comparison_writes_its_finished_rows(monkeypatch):
    engines = []

    def second_fails(*model):
        engines.append(model)
        if len(engines) == 2:
            raise MemoryError
        return player()

    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", second_fails)
    result = CliRunner().invoke(cli.app, ["compare", "game24", *PUZZLES, "--json"])
    assert result.exit_code == 1
    assert [row["strategy"] for row in json.loads(result.stdout)["rows"]] == ["CoT greedy"]
    assert "MemoryError" in result.stderr


def test_results_do_not_depend_on_concurrency():
    contenders = choose_contenders("game24", ["CoT greedy", "ToT-DFS"])
    assert without_time(rows(PUZZLES, contenders, concurrency=1)) == without_time(
        rows(PUZZLES, contenders, concurrency=3)
    )


def test_a_bad_problem_fails_alone_and_counts_as_unsolved():
    row = rows([*PUZZLES, "1 1 1 1"], choose_contenders("game24", ["ToT-BFS b=5"]))["ToT-BFS b=5"]
    assert (row.solved, row.n) == (3, 4)
    assert [failure.problem for failure in row.failures] == ["1 1 1 1"]
    assert "no way" in row.failures[0].error


def test_a_row_says_how_many_searches_have_no_answer_and_why():
    row = Comparison(PUZZLES, player, budget=Budget(nodes=3)).run(choose_contenders("game24", ["ToT-BFS b=5"])[0])
    assert (row.solved, row.unanswered) == (0, 3)
    assert row.reasons == {"the budget of 3 nodes is used up": 3}
    console = Console(file=io.StringIO(), width=120)
    console.print(comparison_table([row]))
    assert "ToT-BFS b=5: 3 without an answer, 3× the budget of 3 nodes is used up\n" in console.file.getvalue()


def test_a_foreign_error_fails_alone_too(monkeypatch):
    original = Game24.validate
    monkeypatch.setattr(Game24, "validate", lambda self, p: 1 / 0 if p == "1 2 3 4" else original(self, p))
    row = rows(PUZZLES, choose_contenders("game24", ["ToT-BFS b=5"]))["ToT-BFS b=5"]
    assert [failure.problem for failure in row.failures] == ["1 2 3 4"]
    assert "ZeroDivisionError" in row.failures[0].error


def test_the_held_out_sets_are_puzzles_and_do_not_overlap():
    roots, states = (choose_problems(held_out=True), choose_problems(held_out_states=True))
    assert (len(set(roots)), len(set(states))) == (100, 50)
    assert not set(roots) & set(states)
    everything = {" ".join(map(str, puzzle)) for puzzle in all_puzzles()}
    assert set(roots) | set(states) <= everything


def test_rows_of_a_file_are_chosen_by_rank(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("Rank,Puzzles\n1,1 1 4 6\n2,10 6 5 4\n3,1 2 3 4\n")
    assert choose_problems(file=file, rows="2-3") == ["4 5 6 10", "1 2 3 4"]
    assert len(choose_problems(file=file)) == 3


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", b"Rank,Puzzles\nx,1 2 3 4\n", b"Rank,Puzzles\n1\n", b"\xff\xfe\x00Rank,Puzzles\n"]
)
def test_a_malformed_file_is_an_error_of_one_sentence(tmp_path, content):
    file = tmp_path / "p.csv"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"p\.csv"):
        choose_problems(file=file)


def test_the_command_writes_the_table_and_the_json(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: player())
    only = ["--only", "CoT greedy", "--only", "ToT-BFS b=5"]
    result = CliRunner().invoke(cli.app, ["compare", "game24", *PUZZLES, "1 1 1 1", *only])
    assert result.exit_code == 0, result.output
    assert "3/4" in result.stdout
    assert "failed in 2 rows" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    record = json.loads(CliRunner().invoke(cli.app, ["compare", "game24", *PUZZLES, "--json", *only]).stdout)
    assert record["task"] == "game24"
    assert [row["solved"] for row in record["rows"]][1] == 3
