"""``--compress``, ``--lossless`` and ``--offload``: their effect on the engine, and impossible combinations."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rksc_tot.cli.commands import app as cli
from rksc_tot.cli.exits import NOT_SOLVED, USAGE
from rksc_tot.cli.options.engine import EngineOptions
from rksc_tot.cli.options.plugins import plug_in
from rksc_tot.core.errors import ConfigError
from rksc_tot.engine.transformers_engine.settings import EngineSettings
from rksc_tot.policies.compression.arborkv import ArborKV
from rksc_tot.policies.compression.random_attention import RandomAttention
from rksc_tot.policies.compression.registry import COMPRESSION_POLICIES
from rksc_tot.policies.compression.streaming_llm import Streaming
from tests.game24_player import player

PUZZLE = "4 5 6 10"
DONE = (0, NOT_SOLVED)
FEW = ["--set", "k=6", "--set", "b=2"]
OWN = (
    "from rksc_tot.policies.compression.streaming_llm import Streaming\n\n"
    "class Last(Streaming):\n    name = 'last'\n    sinks: int = 0\n"
)


def run(*args):
    return CliRunner().invoke(cli.app, [*map(str, args)])


def compression_of(text):
    return plug_in(COMPRESSION_POLICIES, "--compress", text, "streaming:budget=256")


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *_: pytest.fail("loaded"))


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """What each engine was opened with."""
    (tmp_path / "p.jsonl").write_text(json.dumps(PUZZLE) + "\n", encoding="utf-8")
    found = []
    monkeypatch.setattr("rksc_tot.cli.engine.open_engine", lambda *how: found.append(dict(how[-1])) or player())
    return found


# -- a policy and its settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("streaming", Streaming()),
        ("random_attention:budget=256,recent=32", RandomAttention(budget=256, recent=32)),
        ("random_attention:sets=one,pin_prompt=false", RandomAttention(sets="one", pin_prompt=False)),
        ('random_attention:sets="one"', RandomAttention(sets="one")),
        ("arborkv:theta=[0.5,-1,2e-1],offset=-3,tail=2", ArborKV(theta=(0.5, -1, 0.2), offset=-3, tail=2)),
        ("rksc_tot.policies.compression.streaming_llm:Streaming", Streaming()),
        ("rksc_tot.policies.compression.streaming_llm:Streaming:budget=9", Streaming(budget=9)),
    ],
)
def test_a_policy_is_named_with_its_settings(text, policy):
    assert compression_of(text) == policy


@pytest.mark.parametrize("name", COMPRESSION_POLICIES.names())
def test_every_setting_of_every_policy_survives_being_written_on_the_command_line(name):
    policy = COMPRESSION_POLICIES.make(name)
    settings = {key: value for key, value in policy.model_dump(mode="json").items() if value is not None}
    assert (
        compression_of(f"{name}:" + ",".join(f"{key}={json.dumps(value)}" for key, value in settings.items())) == policy
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lru", "there is no compression policy 'lru' - there are arborkv"),
        ("", "there is no compression policy ''"),
        ("streaming:budget=0", "budget: should be greater than or equal to 1, not 0"),
        ("streaming:size=1", "there is no setting 'size' - its settings are seed, budget, recent"),
        ("streaming,budget=1", "--compress is 'streaming,budget=1' - write name or name:setting=value"),
        ("arborkv:fit=none.json", "'none.json' cannot be read"),
        ("math:pi", "is float, not a CompressionPolicy"),
        ("arborkv:tail=" + "[" * 100_000, "tail: should be a valid integer"),
        ("arborkv:tail=" + "9" * 5000, "tail: Unable to parse input string as an integer"),
        ('arborkv:fit="a,b=c.json",tail=3', "'a,b=c.json' cannot be read"),
        (
            "streeming:budget=9",
            "there is no compression policy 'streeming' - did you mean 'streaming'? there are arborkv",
        ),
        ("streaming:", "--compress is 'streaming:' - write name or name:setting=value"),
        ("math:pi:", "--compress is 'math:pi:' - write name or name:setting=value"),
        ("no:Such:", "--compress is 'no:Such:' - write name or name:setting=value"),
        ("random_attention:budget", "--compress is 'random_attention:budget' - write name or name:setting=value"),
        ("streaming:sinks,budget=9", "--compress is 'streaming:sinks,budget=9' - write name or name:setting=value"),
        ("streaming:2nd=9", "--compress is 'streaming:2nd=9' - write name or name:setting=value"),
        (
            "streaming:budget=24,budget=12",
            "--compress is 'streaming:budget=24,budget=12', with budget twice - leave one",
        ),
        ("streaming:budget=24,sinks=1,budget=24", "with budget twice"),
        ("arborkv:theta=1,0,1", "theta: should be a list, such as [1,0,1], not '1,0,1'"),
        ("streaming:budget=9,sinks", "budget: should be a valid integer, not '9,sinks'"),
    ],
)
def test_an_invalid_policy_is_refused_before_a_model_is_loaded(no_model, text, says):
    with pytest.raises(ConfigError) as refused:
        compression_of(text)
    assert says in str(refused.value)
    result = run("solve", "game24", PUZZLE, "--compress", text)
    assert result.exit_code == USAGE
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["solve", "compare", "run"])
def test_the_help_says_when_results_are_exact_and_where_the_settings_are(command):
    said = " ".join(run(command, "--help").stdout.replace("│", " ").split())
    for part in (
        "a policy from `rksc-tot policies`",
        "approximate then, except with --lossless, and with arborkv, which acts when --kv-budget is full",
        "(unless rehydrate=false)",
    ):
        assert part in said


def test_a_policy_of_the_current_folder_is_found(opened):
    Path("keep_here.py").write_text(OWN, encoding="utf-8")
    assert run("solve", "game24", PUZZLE, "--compress", "keep_here:Last:budget=99", *FEW).exit_code in DONE
    [memory] = opened
    assert (memory["compress"].name, memory["compress"].budget, memory["compress"].sinks) == ("last", 99, 0)


# -- what the engine is described ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["solve", "game24", PUZZLE, *FEW],
        ["run", "game24", "p.jsonl", "--out", "r.jsonl", *FEW],
        ["compare", "game24", PUZZLE, "--only", "ToT-BFS b=5"],
    ],
    ids=lambda command: command[0],
)
def test_every_search_command_passes_all_engine_options(opened, command, tmp_path):
    options = ["--compress", "streaming:budget=99", "--lossless", "--offload", "disk", "--offload-budget", "64MiB"]
    assert run(*command, *options, "--offload-folder", tmp_path, "--kv-budget", "1MiB").exit_code in DONE
    assert opened
    for memory in opened:
        assert memory == dict(
            EngineSettings(
                kv_budget=1 << 20,
                compress=Streaming(budget=99),
                lossless=True,
                offload="disk",
                offload_budget="64MiB",
                offload_folder=str(tmp_path),
            )
        )


def test_by_default_nothing_is_compressed_or_offloaded(opened):
    assert run("solve", "game24", PUZZLE, *FEW).exit_code in DONE
    [memory] = opened
    assert (memory["compress"], memory["lossless"], memory["offload"]) == (None, False, None)


@pytest.mark.parametrize("command", ["solve", "compare", "run"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--lossless"], "and compress is not set - name a compression policy, or leave lossless out"),
        (
            ["--offload-budget", "2GiB"],
            "offload_budget is '2GiB', and offload is not set - set offload to cpu or disk",
        ),
        (["--offload-folder", "."], "offload_folder is '.', and offload is not set"),
        (["--offload", "tape"], "offload is 'tape' - name one of cpu, disk"),
        (["--offload", "cpu", "--offload-folder", "."], "offload to cpu has no use for the folder '.'"),
        (["--offload", "disk", "--offload-folder", "no/such"], "there is no folder 'no/such' to offload to"),
        (["--offload", "disk", "--offload-folder", ""], "offload_folder is '' - give the path of a folder"),
        (["--offload", "cpu", "--offload-budget", "much"], "--offload-budget 'much' is no size in bytes"),
        (["--kv-budget", "-1"], "--kv-budget '-1' is no size in bytes"),
        (["--compress", "snapkv:kernel=4"], "it must be odd"),
    ],
)
def test_impossible_options_are_refused_before_a_model_is_loaded(
    no_model, tmp_path, monkeypatch, command, options, says
):
    Path("p.jsonl").write_text(json.dumps(PUZZLE) + "\n", encoding="utf-8")
    rest = {"solve": [PUZZLE], "compare": [PUZZLE], "run": ["p.jsonl", "--out", "r.jsonl"]}[command]
    result = run(command, "game24", *rest, *options)
    assert result.exit_code == USAGE, result.output
    assert says in result.stderr
    assert not Path("r.jsonl").exists()


# -- results say it ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lossless", [False, True])
def test_a_result_records_the_compression_policy_and_inexact_nodes(lossless):
    compress = ["--compress", "random_attention:budget=20,recent=4,sets=one", "--offload", "cpu"]
    done = run("solve", "game24", PUZZLE, "--json", *FEW, *compress, *(["--lossless"] if lossless else []))
    record = json.loads(done.stdout)
    numerics = record["numerics"]
    assert {"name": "random_attention", "budget": 20, "recent": 4, "sets": "one"}.items() <= numerics[
        "compression"
    ].items()
    assert bool(numerics["lossless"]) is lossless
    assert numerics["offload"] == "memory"
    assert all(node["exact"] for node in record["tree"]) is lossless
    assert record["ledger"]["compression"]["acted"] > 0
    assert (record["ledger"]["verified"]["drafted"] > 0) is lossless


def test_a_report_shows_the_compression():
    said = run("solve", "game24", PUZZLE, *FEW, "--compress", "streaming:budget=20,recent=4").stdout
    said = " ".join(said.split())
    for part in (
        "not exact",
        "KV compressed",
        "rows computed on compressed KV",
        "compression streaming(seed=0, budget=20, recent=4, pin_prompt=True, sinks=4), model embedded",
    ):
        assert part in said
    assert "KV compressed" not in run("solve", "game24", PUZZLE, *FEW).stdout


@pytest.mark.parametrize(
    ("then", "now", "differs"),
    [
        ([], ["--compress", "streaming"], "compress"),
        (["--compress", "streaming"], ["--compress", "streaming:budget=99"], "compress"),
        (["--compress", "streaming"], ["--compress", "streaming", "--lossless"], "lossless"),
        (
            ["--compress", "arborkv:rehydrate=false"],
            ["--compress", "arborkv:rehydrate=false", "--kv-budget", "1MiB"],
            "kv_budget",
        ),
        (["--compress", "streaming"], ["--compress", "streaming", "--kv-budget", "1MiB"], "kv_budget"),
        (["--compress", "streaming"], ["--compress", "streaming", "--eviction", "lru"], "eviction"),
        (["--compress", "streaming"], ["--compress", "streaming", "--offload", "cpu"], "offload"),
        (
            ["--compress", "streaming", "--lossless"],
            ["--compress", "streaming", "--lossless", "--kv-budget", "1MiB"],
            None,
        ),
        (["--compress", "arborkv"], ["--compress", "arborkv", "--kv-budget", "1MiB"], None),
        ([], ["--offload", "cpu", "--kv-budget", "1MiB"], None),
    ],
)
def test_resume_accepts_only_engine_options_with_the_same_results(opened, then, now, differs):
    line = ["run", "game24", "p.jsonl", "--out", "r.jsonl", *FEW]
    assert run(*line, *then).exit_code == 0
    again = run(*line, *now, "--resume")
    assert again.exit_code == (USAGE if differs else 0), again.output
    assert differs is None or f"has {differs} " in again.stderr


def test_a_file_without_compression_settings_can_be_resumed():
    described = EngineOptions().describe(EngineOptions().arguments_for())
    assert described == {"model": "embedded", "device": "cpu", "dtype": "float32"}
