"""Both methods of verification give equal verdicts, and their costs are the computed tokens."""

import asyncio

import numpy as np
import pytest

from benchmarks.common.random_models import SHAPES
from benchmarks.speed.paper import QUESTION_TOKENS, plain_and_engine, work
from benchmarks.speed.prm_depth import PROMPT, THOUGHT, Checked, exponents

DEPTH = 5


@pytest.fixture(scope="module")
def costs():
    plain, engine = plain_and_engine("tiny")
    task = work(PROMPT, 1, SHAPES["tiny"]["vocab_size"])
    with engine:
        found = asyncio.run(Checked(plain, engine, task.question).grow(task.prompt, DEPTH, 1))
        engine.check_integrity()
        assert engine.usage.kv_bytes == 0
    return found


def test_ours_computes_only_the_question_and_the_last_token(costs):
    ours, _ = costs
    assert [cost.tokens for cost in ours] == [QUESTION_TOKENS + 1] * DEPTH


def test_re_encoding_computes_prompt_path_and_question(costs):
    _, others = costs
    assert [cost.tokens for cost in others] == [PROMPT + n * THOUGHT + QUESTION_TOKENS for n in range(1, DEPTH + 1)]


def test_both_methods_give_the_same_verdict_on_every_thought(costs):
    ours, others = costs
    assert [cost.verdict for cost in ours] == pytest.approx([cost.verdict for cost in others], abs=1e-5)
    assert len({cost.verdict for cost in ours}) == DEPTH


def test_the_exponent_of_a_power_is_that_power():
    depths = 2.0 ** np.arange(1, 6)
    assert exponents("x", 3 * depths) == {"x": 1.0, "x.last": 1.0}
    assert exponents("x", depths**2) == {"x": 2.0, "x.last": 2.0}
    found = exponents("x", depths + depths**2)
    assert 1 < found["x"] < found["x.last"] < 2
