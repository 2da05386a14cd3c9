"""Outcome checks: which answers are checked, by what, and what cannot be checked."""

import json

import pytest

from rksc_tot.core.errors import ConfigError, VerifierError
from rksc_tot.core.task import function_task
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.search import Search
from rksc_tot.verifiers import OutcomeCheck

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


async def scores(verifier, texts, problem=None, done=True, **options):
    given = iter(texts)
    task = function_task(
        prompt=lambda problem: "go\n",
        is_solution=lambda problem, path: done and bool(path),
        max_thought_tokens=400,
        **options,
    )
    search = Search(task, problem or {"answer": "1,200 g"}, MockEngine(lambda text, rng: next(given) + "\n"), verifier)
    level = await search.expand([search.root], len(texts))
    await search.score(level)
    assert search.ledger.verifier_calls == 0
    return [node.score if node.pruned is None else node.pruned for node in level]


async def test_answers_are_checked_by_pattern_schema_reward_and_task():
    for verifier, texts, wanted in (
        (OutcomeCheck(pattern=r"\d+"), ["12", "12 g", " 3 "], [1, 0, 1]),
        (OutcomeCheck(json_schema=SCHEMA), ['{"n": 1}', '{"n": "1"}', "{}", "prose", '{"n": NaN}'], [1, 0, 0, 0, 0]),
        (OutcomeCheck(reward="numeric"), ["1200 g", "1200", "1201", "many"], [1, 1, 0, 0]),
        (OutcomeCheck(reward="exact", answer="after:so"), ["so 1,200 G", "so 12", "hm"], [1, 0, 0.5]),
        (OutcomeCheck(reward=lambda row, answer: len(answer) > 1), ["ab", "a"], [1, 0]),
        (OutcomeCheck(answer="boxed", pattern="a+"), [r"it is \boxed{aa}", r"\boxed{b}", "aa"], [1, 0, 0.5]),
        (OutcomeCheck(pattern=r"\d+", reward="numeric"), ["1200", "1201", "1200 g"], [1, 0, 0]),
    ):
        assert await scores(verifier, texts) == wanted, verifier
    check = {"1": True, "2": False, "3": None}.get
    assert await scores(OutcomeCheck(unfinished=0.2), list("123"), check=lambda problem, answer: check(answer)) == [
        1,
        0,
        0.2,
    ]


async def test_a_path_that_goes_on_and_an_answer_that_cannot_be_judged_are_unfinished():
    assert await scores(OutcomeCheck(pattern="a"), ["a"], done=False) == [0.5]
    assert await scores(OutcomeCheck(reward=lambda row, answer: None), ["a"]) == [0.5]


async def test_a_failure_of_the_task_or_the_reward_costs_only_its_node():
    def reward(row, answer):
        return {"a": True}[answer]

    [right, pruned] = await scores(OutcomeCheck(reward=reward), ["a", "b"])
    assert right == 1
    assert "the reward raised KeyError: 'b'" in pruned
    with pytest.raises(VerifierError, match="the problem has no field 'answer' - name the right answer with target"):
        await scores(OutcomeCheck(reward="exact"), ["a"], problem="text")
    with pytest.raises(VerifierError, match="the schema raised"):
        await scores(OutcomeCheck(json_schema={"$ref": "https://example.org/schema"}), ["{}"])


def test_a_schema_is_read_from_a_dict_json_or_a_file(tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    for given in (SCHEMA, json.dumps(SCHEMA), str(tmp_path / "schema.json")):
        assert OutcomeCheck(json_schema=given)._validator.is_valid({"n": 1})


def test_bad_settings_are_refused():
    for settings, says in (
        ({"pattern": "("}, "regular expression"),
        ({"json_schema": {"type": "objct"}}, "no JSON schema"),
        ({"json_schema": "{"}, "give JSON, or a file of it"),
        ({"json_schema": "nowhere.json"}, "No such file"),
        ({"reward": "nope"}, "there is no reward 'nope'"),
        ({"answer": "nope"}, "answer is 'nope'"),
        ({"unfinished": 2}, "unfinished"),
    ):
        with pytest.raises(ConfigError, match=says):
            OutcomeCheck(**settings)
