"""The conditions of the paper benchmark do the same work, and no baseline computes more rows than it needs."""

import math

import numpy as np
import pytest

from benchmarks.common.random_models import SHAPES, word_tokenizer
from benchmarks.speed.paper import (
    BRANCHES,
    QUESTION_TOKENS,
    Rules,
    accepted,
    compare,
    conditions,
    plain_and_engine,
    ratio,
    work,
)

VOCABULARY = SHAPES["tiny"]["vocab_size"]
PROMPT, NEW = 40, 6


@pytest.fixture(scope="module")
def found():
    plain, engine = plain_and_engine("tiny")
    with engine:
        yield conditions(plain, engine, Rules())


def test_a_text_has_the_given_number_of_tokens():
    task = work(PROMPT, NEW, VOCABULARY)
    tokenizer = word_tokenizer(VOCABULARY)
    ids = tokenizer.encode(task.prompt, add_special_tokens=False)
    assert len(ids) == PROMPT
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == task.prompt
    assert len(tokenizer.encode(task.question, add_special_tokens=False)) == QUESTION_TOKENS


def test_all_conditions_give_the_same_texts_and_verdicts(found):
    task = work(PROMPT, NEW, VOCABULARY)
    replies = {name: condition(task) for name, condition in found.items()}
    assert len(set(replies["a"].texts)) == BRANCHES
    assert len(set(replies["a"].verdicts)) == BRANCHES
    for reply in replies.values():
        assert reply.texts == replies["a"].texts
        assert reply.verdicts == pytest.approx(replies["a"].verdicts, abs=1e-5)


def test_no_condition_computes_more_rows_than_its_sharing_needs():
    rows = []
    plain, engine = plain_and_engine("tiny")
    with engine:
        found = conditions(plain, engine, Rules())
        del found["c_stock"]  # an engine like that of (c), on modules of its own
        for each in (plain, engine):
            each.model.model.norm.register_forward_hook(lambda _, __, output: rows.append(output[..., 0].numel()))
        task = work(PROMPT, NEW, VOCABULARY)
        computed = {}
        for name, condition in found.items():
            rows.clear()
            condition(task)
            computed[name] = sum(rows)
    written, again = BRANCHES * (NEW - 1), BRANCHES * (PROMPT + NEW + QUESTION_TOKENS)
    assert computed["a"] == BRANCHES * PROMPT + written + again
    assert computed["b1"] == PROMPT + written + again
    assert computed["b2"] == PROMPT + written + BRANCHES * (1 + QUESTION_TOKENS)
    assert computed["c"] <= computed["b2"]
    assert computed["d"] == computed["c"]


def test_every_figure_of_the_table_is_there_and_a_number(found):
    tasks = {length: work(length, NEW, VOCABULARY) for length in (33, PROMPT)}
    figures = compare(found, tasks, 2, "short.")
    assert figures["short.same_text"] is True
    for over in ("a", "b1", "b2"):
        for name in (f"{over}_over_c.33", f"{over}_over_c.{PROMPT}", f"mean.{over}_over_c", f"mean.{over}_over_d"):
            value, low, high = (figures[f"short.{name}{end}"] for end in ("", ".low", ".high"))
            assert 0 < low <= value <= high < math.inf


def test_a_different_text_is_not_reported_as_the_same(found):
    def other(task):
        replies = found["c"](task)
        return replies._replace(texts=[*replies.texts[:-1], replies.texts[-1] + "!"])

    tasks = {PROMPT: work(PROMPT, NEW, VOCABULARY)}
    assert compare(found | {"c": other}, tasks, 1)["same_text"] is False


def test_a_ratio_is_of_all_rounds_together_and_its_interval_shrinks_to_it_where_rounds_agree():
    under = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    over = under * np.array([[2.0], [4.0]])
    assert ratio("x", over, under) == {"x": 3.0, "x.low": 3.0, "x.high": 3.0}
    over[0] = [2.0, 4.0, 15.0]
    found = ratio("x", over, under)
    assert found["x"] == 3.5  # (21 / 7 + 4) / 2
    assert 3.0 <= found["x.low"] < 3.5 < found["x.high"] <= (15 / 4 + 4) / 2


def test_a_calibration_accepts_no_rule_for_labels_without_meaning():
    _, engine = plain_and_engine("tiny")
    with engine:
        assert accepted(engine) == Rules()
