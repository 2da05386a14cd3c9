"""Invalid settings, prompts and problems."""

import pytest

from rksc_tot.core.errors import TaskError
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import Likelihood
from tests.search.mock_search import make_search, make_task, wide

SETTINGS = [
    ({"temperature": -1}, "temperature: "), ({"temperature": "hot"}, "temperature: "), ({"top_p": 2}, "top_p: "),
    ({"top_k": 0}, "top_k: "), ({"min_p": 5}, "min_p: "), ({"stop": None}, "stop is None"), ({"stop": "ab"}, "stop is 'ab'"),
    ({"stop": ("",)}, "stop .* empty string"), ({"propose_stop": "x"}, "propose_stop is"), ({"mode": "foo"}, "mode is 'foo'"),
    ({"max_thoughts": "3"}, "max_thoughts is '3'"), ({"max_thoughts": 0}, "max_thoughts is 0"),
    ({"max_thought_tokens": -5}, "max_thought_tokens is -5"), ({"keep_stop": "no"}, "keep_stop is 'no'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "words"), SETTINGS)
def test_an_invalid_setting_is_refused_at_the_root_by_name(options, words):
    engine = MockEngine(wide)
    with pytest.raises(TaskError, match=f"^{words}") as caught:
        make_search(task=make_task(**options), engine=engine)
    assert "\n" not in str(caught.value)
    assert engine.handles == 0


@pytest.mark.parametrize(
    "prompt", [None, 5, b"x", [{"role": "user"}], "", "\udcff", [{"role": "user", "content": "\ud800"}]]
)
def test_an_invalid_prompt_is_refused_at_the_root(prompt):
    with pytest.raises(TaskError, match="the prompt for 'p' "):
        make_search(task=make_task(prompt=lambda problem: prompt))


class Anonymous:
    pass


class Unspeakable:
    def __str__(self):
        raise KeyError("no")


@pytest.mark.parametrize("problem", [Anonymous(), [Anonymous()], {"a": (Anonymous(),)}, Unspeakable(), "\udcff", wide])
def test_a_problem_whose_text_cannot_name_a_random_stream_is_refused(problem):
    task = make_task(prompt=lambda problem: "go\n")
    with pytest.raises(TaskError, match=r"the problem .* (address|has no text|half a character)"):
        Search(task, problem, MockEngine(wide), Likelihood())


@pytest.mark.parametrize("problem", [{"a", "b"}, frozenset((1, 2)), [{"a": {"x", "y"}}], ({"a", "b"},)])
def test_a_problem_that_holds_a_set_is_refused(problem):
    task = make_task(prompt=lambda problem: "go\n")
    with pytest.raises(TaskError, match="set, whose order differs between processes"):
        Search(task, problem, MockEngine(wide), Likelihood())


@pytest.mark.parametrize("problem", [{"a"}, None, 7, (4, 5), {"a": [1.5]}, "<x object at 0x7f12>"])
def test_a_problem_with_its_own_str_is_accepted(problem):
    task = make_task(prompt=lambda problem: "go\n")
    assert Search(task, problem, MockEngine(wide), Likelihood()).root.id == 0
