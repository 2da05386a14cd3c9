"""``--config FILE``: options of a command from a file, overridden by the command line."""

import json
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import USAGE
from rksc_tot.cli.options.config_file import options_of
from rksc_tot.core.sizes import MOST
from rksc_tot.policies.compression.random_attention import RandomAttention
from tests.game24_player import player

PUZZLE = "4 5 6 10"
COMMANDS = {
    "solve": ["solve", "game24", PUZZLE],
    "compare": ["compare", "game24", PUZZLE],
    "run": ["run", "game24", "p.jsonl"],
    "calibrate": ["calibrate", "game24", PUZZLE],
    "fit": ["fit", "arborkv", "game24", PUZZLE],
}


@pytest.fixture(autouse=True)
def opened(monkeypatch, tmp_path):
    """What each engine was opened with."""
    Path("p.jsonl").write_text(json.dumps(PUZZLE) + "\n", encoding="utf-8")
    found = []
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *how: found.append(how) or player())
    return found


def run(*args, config=None):
    options = []
    if config is not None:
        Path("c.toml").write_text(config, encoding="utf-8")
        options = ["--config", "c.toml"]
    return CliRunner().invoke(cli.app, [*args, *options])


def solved(*args, config=None):
    done = run("solve", "game24", PUZZLE, "--json", *args, config=config)
    return json.loads(done.stdout)["settings"]


def test_a_config_file_equals_the_same_options(opened):
    config = """
        seed = 5
        strategy = "bfs"
        max-tokens = 900
        max_seconds = 60        # a whole number where any is taken
        kv-budget = "8MiB"
        device = "cpu"
        set = ["k=6", "b=2"]
    """
    line = ["--seed", "5", "--max-tokens", "900", "--max-seconds", "60", "--set", "k=6", "--set", "b=2"]
    assert solved(config=config) == solved(*line, "--kv-budget", "8MiB")
    assert [how[-1].kv_budget for how in opened] == [8 << 20] * 2


def test_the_command_line_overrides_the_file(opened):
    config = 'seed = 5\nkv-budget = "8MiB"\nlossless = true\ncompress = "streaming"\n[set]\nk = 6\nb = 2\n'
    found = solved("--seed", "6", "--kv-budget", "9MiB", "--no-lossless", "--set", "k=7", config=config)
    assert found["seed"] == 6
    assert found["strategy"] == {"name": "bfs", "k": 7, "b": 5}
    [how] = opened
    assert (how[-1].kv_budget, how[-1].lossless, how[-1].compress.name) == (9 << 20, False, "streaming")


def test_a_policy_and_the_settings_of_a_strategy_may_be_tables(opened):
    config = """
        [compress]
        name = "random_attention"
        budget = 40
        sets = "one"
        pin_prompt = false
        [set]
        k = 6
    """
    assert solved(config=config)["strategy"]["k"] == 6
    assert opened[0][-1].compress == RandomAttention(budget=40, sets="one", pin_prompt=False)
    config = '[compress]\nname = "arborkv"\ntheta = [0.5, -1, 2]\n'
    solved("--set", "k=6", config=config)
    assert opened[1][-1].compress.theta == (0.5, -1, 2)
    solved("--set", "k=6", config='[compress]\nname = "streaming"\n')
    assert opened[2][-1].compress.name == "streaming"


def test_an_ensemble_is_a_table_whose_members_are_names_or_tables(opened):
    members = 'members = ["lm_value", {name = "likelihood", of = "path"}]\nweights = [2, 1]\n'
    settings = solved(config=f'[verifier]\nname = "ensemble"\n{members}')["verifier"]
    assert settings["members"] == [{"name": "lm_value"}, {"name": "likelihood", "of": "path"}]
    assert settings["weights"] == [2.0, 1.0]


def test_a_verifier_may_be_a_table_or_a_string_with_its_settings(opened):
    for config in ('[verifier]\nname = "likelihood"\nof = "path"\n', 'verifier = "likelihood:of=path"\n'):
        assert solved(config=config)["verifier"] == {"name": "likelihood", "of": "path"}


def test_sampling_options_may_be_in_the_file(opened):
    sampling = solved(config="temperature = 0.5\ntop-k = 7\n[set]\nk = 6\n")["sampling"]
    assert (sampling["temperature"], sampling["top_k"]) == (0.5, 7)


def test_a_size_may_be_a_number_of_bytes(opened):
    config = "kv-budget = 1000000\nmax-kv = 800_000\noffload = 'cpu'\noffload-budget = 2000000\n[set]\nk = 6\n"
    assert solved(config=config)["budget"] == {"kv_bytes": 800_000}
    memory = opened[0][-1]
    assert (memory.kv_budget, memory.offload_budget) == (1_000_000, 2_000_000)
    solved(config="kv-budget = 0x" + "f" * 8000 + "\n[set]\nk = 6\n")
    assert opened[1][-1].kv_budget == MOST


def test_a_required_option_may_be_in_the_file():
    assert run("run", "game24", "p.jsonl", config='out = "r.jsonl"\ntrees = true\n[set]\nk = 4\n').exit_code == 0
    [line] = [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()]
    assert line["result"]["tree"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('kv-bugdet = "1MiB"', "has no option 'kv-bugdet' - did you mean 'kv-budget'? there are "),
        ('config = "d.toml"', "has no option 'config'"),
        ("problem = 1", "has no option 'problem'"),
        ('device = "cpu"\n[device]', "is not TOML"),
        ("dtype", "is not TOML: "),
        ("dtype = 32", "dtype is 32 - give a string"),
        ('debug = "yes"', "debug is 'yes' - give true or false"),
        ("debug = 1", "debug is 1 - give true or false"),
        ('kv_budget = "1MiB"\nkv-budget = "1MiB"', "has 'kv-budget' twice"),
        ("[model]\nname = 1", "model is {'name': 1} - give a string"),
    ],
)
def test_an_error_in_a_file_names_the_file_before_a_model_is_loaded(monkeypatch, command, config, says):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))
    result = run(*COMMANDS[command], config=config)
    assert result.exit_code == USAGE, result.output
    assert result.stderr.startswith("error: 'c.toml'")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('seed = "5"', "seed is '5' - give a whole number"),
        ("seed = true", "seed is True - give a whole number"),
        ("seed = 1.5", "seed is 1.5 - give a whole number"),
        ('max-seconds = "1"', "max-seconds is '1' - give a number"),
        ("set = [1]", "set is [1] - give a string, or a list of them, or a table"),
        ("kv-budget = 0", "--kv-budget '0' is no size in bytes"),
        ("max-kv = -1", "--max-kv '-1' is no size in bytes"),
        ("offload-budget = true", "offload-budget is True - give a string, or a whole number of bytes"),
        ("kv-budget = 1.5", "kv-budget is 1.5 - give a string, or a whole number of bytes"),
        ("compress = 3", "compress is 3 - give a string, or a table"),
        ("[compress]\nbudget = 3", 'compress has no name - add a name, such as name = "streaming"'),
        ('[compress]\nname = "streaming"\nbudget = 2020-01-01', "compress is {'budget': datetime.date(2020, 1, 1)}"),
        ('[compress]\nname = "streaming"\nbudget = 0', "compression policy 'streaming': budget"),
        ("[set]\nk = 0", "k"),
        ("[set]\nk = 0x" + "f" * 8000, "set is <dict without a text> - give numbers, strings"),
        (
            "compress.name = 'arborkv'\ncompress.theta." + ".".join("a" * 990) + " = 1",
            "compress is <dict without a text>",
        ),
        ('[compress]\nname = "arborkv"\n"tail=3,sinks" = 1', "compress has no setting 'tail=3,sinks'"),
        ('[compress]\nname = "streaming:budget=3"\nrecent = 4', "compress has the name 'streaming:budget=3'"),
        ('[compress]\nname = "arborkv"\nfit = "a,b=c.json"', "'a,b=c.json' cannot be read"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_allowed_type(opened, config, says):
    result = run("solve", "game24", PUZZLE, config=config)
    assert result.exit_code == USAGE, result.output
    assert says in result.stderr
    assert not opened


@pytest.mark.parametrize("command", ["compare", "run", "calibrate"])
def test_a_number_out_of_its_range_is_refused(command):
    assert "concurrency is 0 - give at least 1" in run(*COMMANDS[command], config="concurrency = 0").stderr


@pytest.mark.parametrize("file", ["none.toml", ".", "latin.toml"])
def test_a_file_that_cannot_be_read_is_an_error_of_one_sentence(file):
    Path("latin.toml").write_bytes(b'model = "\xe9"')
    result = CliRunner().invoke(cli.app, [*COMMANDS["solve"], "--config", file])
    assert result.exit_code == USAGE
    assert f"'{file}' cannot be read: " in result.stderr


def test_every_option_of_every_command_can_be_given_in_a_file():
    group = get_command(cli.app)
    commands = [group.commands[name] for name in ("solve", "run", "compare", "calibrate")]
    for command in [*commands, group.commands["fit"].commands["arborkv"]]:
        names = {name[2:] for option in command.params for name in option.opts if name.startswith("--")}
        assert names - set(options_of(command)) == {"config"} | ({"help"} & names), command.name
