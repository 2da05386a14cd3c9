import pytest

from rksc_tot.core.budget import Budget
from rksc_tot.core.errors import VerifierError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.tasks.sandbox import Sandbox, run
from rksc_tot.verifiers import UnitTests
from rksc_tot.verifiers.checks.unit_tests import program_in

PROBLEM = {"tests": ["assert double(2) == 4", ["double('ab')", "abab"]]}
PROGRAMS = [
    "def double(x): return x + x",
    "def double(x): return x ** 2",
    "```python\ndef double(x): return 2 * x\n```",
    "x",
]
PATIENT = Sandbox(seconds=120, cpu_seconds=60)


@pytest.fixture(autouse=True)
def on_a_system_with_a_sandbox(request):
    if "refuse" not in request.node.name and (missing := PATIENT.guarantees().missing):
        pytest.skip(f"this system cannot hold {missing}")


def a_search(verifier, problem=PROBLEM, **options):
    task = function_task(
        prompt=lambda problem: "go\n", is_solution=lambda problem, path: len(path) == 3, stop=("<end>",)
    )
    replies = iter(PROGRAMS * 9)
    return Search(task, problem, MockEngine(lambda text, rng: next(replies) + "<end>"), verifier, **options)


async def scores_of(search, depth=1):
    level = [search.root]
    for k in [1] * (depth - 1) + [4]:
        level = await search.expand(level, k)
    await search.score(level)
    return {node.text: node.score for node in level}


async def test_the_score_is_the_share_of_tests_that_the_last_thought_passes():
    scores = await scores_of(a_search(UnitTests(sandbox=PATIENT)))
    assert [scores[program] for program in PROGRAMS] == [1.0, 0.5, 1.0, 0.0]


async def test_the_program_may_be_the_whole_path():
    search = a_search(UnitTests(sandbox=PATIENT, code="path"), {"tests": ["assert double(2) == 4"]})
    scores = await scores_of(search, depth=2)
    assert scores[PROGRAMS[3]] == 0.0  # "x" raises after the function
    assert scores[PROGRAMS[1]] == 1.0


async def test_a_field_of_another_name_holds_the_tests():
    scores = await scores_of(a_search(UnitTests(sandbox=PATIENT, tests="checks"), {"checks": [["double(1)", 2]]}))
    assert scores[PROGRAMS[0]] == 1.0


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("p", "no list of tests in its field 'tests'"),
        ({"tests": []}, "no list of tests"),
        ({"tests": [3]}, "3 is not a test"),
    ],
)
async def test_a_problem_without_tests_is_refused(problem, says):
    search = a_search(UnitTests(), problem)
    with pytest.raises(VerifierError, match=says):
        await search.score(await search.expand([search.root], 1))


async def test_a_search_ends_with_the_reason_if_the_sandbox_refuses(monkeypatch):
    monkeypatch.setattr(run.sys, "platform", "darwin")
    search = a_search(UnitTests())
    level = await search.expand([search.root], 1)
    with pytest.raises(VerifierError, match="needs namespaces and seccomp of Linux"):
        await search.score(level)


async def test_nodes_after_the_deadline_have_no_score_and_their_programs_end():
    search = a_search(UnitTests(sandbox=PATIENT), budget=Budget(seconds=600))
    level = await search.expand([search.root], 4)
    search.limits.account.deadline = 0.0
    assert list(await search.verifier.score(search, level)) == [None] * 4


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1"),
        ("```\na\n```\nBetter:\n```py\nb\nc\n```", "b\nc"),
        ("```python\nx = 1", "x = 1"),
    ],
)
def test_the_program_is_the_last_fenced_block_or_the_whole_text(text, program):
    assert program_in(text) == program
