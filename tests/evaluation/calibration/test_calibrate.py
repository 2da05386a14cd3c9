import math

import pytest

from rksc_tot import calibrate, solve
from rksc_tot.core.errors import ConfigError, EngineError, TaskError
from rksc_tot.core.task import Question
from rksc_tot.engine import TransformersEngine
from rksc_tot.engine.mock.engine import MockEngine
from rksc_tot.policies.early_exit.cgee import Margins, RivalStop, VerifySkip, exit_layer, likeliest
from rksc_tot.policies.early_exit.fixed_sequence_testing import at_most
from tests.engine.conftest import byte_tokenizer, llama
from tests.layered_mock import (
    LAYERS,
    PROBLEMS,
    WALK,
    WORTH,
    between,
    drawn,
    judge,
    make_engine,
    make_task,
    verdict,
    write,
)


def byte_engine():
    return TransformersEngine(llama(len(byte_tokenizer())), byte_tokenizer())


def run(engine=None, task=None, problems=PROBLEMS, **options):
    return calibrate(task or make_task(), problems, engine=engine or make_engine(), **WALK | options)


def test_an_exit_that_holds_is_found_at_the_layer_from_which_it_holds(accepted):
    rule = accepted.exit.rule
    assert isinstance(rule, Margins)
    assert min(rule.thresholds) == 3
    assert accepted.exit.step.saved == pytest.approx(1 - 3 / LAYERS)
    assert accepted.exit.step.k == 0
    assert "exit" in accepted.accepted


def test_one_node_of_each_tested_problem_and_none_of_the_fitting_part_is_tested(accepted):
    assert (accepted.problems, accepted.fitting) == (90, 18)
    assert accepted.exit.examples == accepted.other.examples == accepted.skip.examples == 90 - 18


def test_the_walk_can_be_audited(accepted):
    for outcome in (accepted.exit, accepted.other, accepted.skip, accepted.rivals):
        levels = [step.level for step in outcome.walk]
        assert levels == sorted(levels)
        for step in outcome.walk:
            assert step.p == pytest.approx(at_most(step.k, step.n, 0.05) if step.n else 1)
        assert [step.p <= 0.05 for step in outcome.walk[:-1]] == [True] * (len(outcome.walk) - 1)


def test_a_model_that_is_sure_and_wrong_between_its_layers_is_refused_with_the_reason():
    calibration = run(make_engine(between(wrong_but_sure=0.3)))
    assert calibration.exit.rule is None
    assert "candidate" in calibration.exit.refused or "no threshold" in calibration.exit.refused
    assert calibration.exit.step is None


def test_errors_that_are_rare_but_too_many_for_delta_are_refused():
    """7 % of sure readings are wrong: candidates that tolerate it exist, but the test does not let them pass."""
    calibration = run(make_engine(between(wrong_but_sure=0.07)))
    [step] = calibration.exit.walk
    assert (step.level, step.k) > (0.05, 0)
    assert step.p > 0.05
    assert calibration.exit.rule is None
    assert f"errs at {step.k} of {step.n} nodes" in calibration.exit.refused


def test_a_model_that_answers_something_else_is_refused_whatever_its_layers_agree_on():
    def elsewhere(text, question, labels):
        return {label: 0.3 * share for label, share in judge(text, question, labels).items()}

    calibration = run(make_engine(labeller=elsewhere))
    assert calibration.exit.refused.startswith(
        "at 72 of 72 nodes the model gives more than half its mass to something else"
    )
    assert calibration.outside == 1


def test_a_model_that_always_says_the_same_is_refused_for_every_rule_would_pass():
    def always(text, question, labels):
        return {"good": 0.51, "bad": 0.49}

    calibration = run(make_engine(lambda *asked: {"good": 0.99, "bad": 0.01}, always))
    assert calibration.exit.refused.startswith("the model decides for the same label at 72 of 72 nodes")
    assert calibration.exit.walk[0].k == 0


def test_skip_and_rivals_pass_where_confidence_tells_the_verifier_s_best():
    def leading(text, rng):
        first = rng.random() < 0.34
        return ("a\n" if first else f"b{rng.getrandbits(24):06x}\n"), -0.01 if first else -3.0

    def favours_a(text, question, labels):
        return {"good": 0.9, "bad": 0.1} if text.endswith("a\n") else {"good": 0.1, "bad": 0.9}

    calibration = run(make_engine(None, favours_a, writer=leading), make_task(max_thoughts=2), delta=0.1)
    assert isinstance(calibration.skip.rule, VerifySkip)
    assert isinstance(calibration.rivals.rule, RivalStop)
    assert calibration.skip.step.saved > 0.5
    assert 0 < calibration.rivals.step.saved < 1


def test_skip_and_rivals_are_refused_where_confidence_tells_nothing(accepted):
    assert accepted.skip.rule is None
    assert accepted.rivals.rule is None
    assert accepted.skip.refused


def test_the_same_seed_gives_the_same_calibration_and_another_tests_other_nodes(accepted):
    again = run(concurrency=3)
    assert again == accepted
    assert run(seed=1) != accepted


def test_nothing_is_left_of_the_searches():
    engine = make_engine()
    run(engine)
    assert engine.handles == 0


@pytest.mark.parametrize(
    ("delta", "alpha", "message"),
    [
        (
            0.01,
            0.05,
            "takes at least 299 problems, .*; 90 are given, of which 18 make the rules and 72 test them - give 373 or more",
        ),
        (0.05, 0.001, "at least 135 problems"),
        (0, 0.05, "delta is 0 "),
        (math.nan, 0.05, "delta is nan"),
        (0.05, 1.0, "alpha is 1.0"),
    ],
)
def test_too_few_problems_or_a_risk_out_of_range_are_refused_before_anything_is_searched(delta, alpha, message):
    engine = make_engine(writer=lambda text, rng: 1 / 0)
    with pytest.raises(ConfigError, match=message):
        run(engine, delta=delta, alpha=alpha)


def test_as_many_problems_as_the_message_asks_for_are_enough():
    problems = [f"p{n}" for n in range(73)]
    with pytest.raises(ConfigError, match="give 73 or more"):
        run(problems=problems[:-1])
    assert run(problems=problems).exit.rule is not None


def test_any_rate_and_level_that_are_in_range_will_do():
    for delta, alpha in ((0.9, 0.5), (0.6, 0.01)):
        assert run(delta=delta, alpha=alpha, problems=PROBLEMS[:30]).delta == delta


def test_a_problem_json_cannot_hold_or_no_search_in_flight_is_refused():
    with pytest.raises(ConfigError, match=r"the problem <object .*> is nothing JSON can hold"):
        run(problems=[*PROBLEMS, object()])
    with pytest.raises(ConfigError, match="concurrency is 0"):
        run(concurrency=0)


def test_a_problem_given_twice_is_refused():
    with pytest.raises(ConfigError, match="is the same problem as"):
        run(problems=[*PROBLEMS, PROBLEMS[4]])


def test_an_engine_without_layers_is_refused():
    with pytest.raises(ConfigError, match="'mock' allows no reads between its layers"):
        run(MockEngine(write, judge))


def test_one_bad_problem_does_not_end_the_run_and_nothing_but_bad_ones_does():
    def prompt(problem):
        if problem in bad:
            raise ValueError("no such problem")
        return f"{problem}:\n"

    bad = PROBLEMS[:3]
    assert run(task=make_task(prompt=prompt)).problems == 87
    bad = PROBLEMS
    with pytest.raises(TaskError, match="no such problem"):
        run(task=make_task(prompt=prompt))


def test_a_task_without_a_question_or_with_changing_labels_is_refused():
    with pytest.raises(TaskError, match="the task has no question to be answered early"):
        run(task=make_task(question=lambda problem, path: None))

    def changing(problem, path):
        return Question("?", WORTH if drawn(problem).random() < 0.5 else {"yes": 1.0, "no": 0.0})

    with pytest.raises(TaskError, match="labels change from node to node: good, bad / yes, no"):
        run(task=make_task(question=changing), engine=make_engine(lens=lambda *a: {}, labeller=lambda *a: {}))


def test_labels_the_engine_cannot_tell_apart_come_through_as_the_engine_says_it():
    class Picky(MockEngine):
        async def label(self, requests, account):
            raise EngineError("label 'good' cannot be told from 'bad' by its first token")

    with pytest.raises(EngineError, match="cannot be told from 'bad' by its first token"):
        run(Picky(write, judge, layers=LAYERS))


def test_labels_that_begin_alike_are_refused_before_anything_is_searched():
    task = make_task(question=lambda problem, path: Question(" worth?", {"good": 1.0, "great": 2.0}))
    engine = make_engine(writer=lambda text, rng: 1 / 0)
    with pytest.raises(ConfigError, match="'good' and 'great' begin with the same token"):
        run(engine, task)
    assert (engine.handles, engine.usage.passes) == (0, 0)
    with byte_engine() as real, pytest.raises(ConfigError, match="'good' and 'great' begin with the same token"):
        run(real, make_task(question=lambda problem, path: Question(" worth?\n", {"good": 1.0, "great": 2.0})))
    assert real.usage.passes == 0


def test_labels_that_begin_alike_end_the_calibration_at_the_first_question_where_the_root_has_none():
    searched = []
    task = make_task(question=lambda problem, path: path[0] and Question(" worth?", {"good": 1.0, "great": 2.0}))
    with pytest.raises(ConfigError, match="'good' and 'great' begin with the same token"):
        run(task=task, concurrency=1, on_problem=searched.append)
    assert len(searched) == 1


def test_the_promise_holds_on_problems_the_calibration_never_saw(accepted):
    """The rule found above errs on fresh nodes no more often than it says."""
    flips, engine = 0, make_engine()
    for problem in (f"fresh {n}" for n in range(40)):
        result = solve(make_task(), problem, engine=engine, strategy=WALK["strategy"])
        for node in result.tree:
            if node.score is not None:
                text = f"{problem}:\n" + "".join(f"{thought.text}\n" for thought in result.tree.path(node))
                trace = [tuple(between()(text, "", tuple(WORTH), layer).values()) for layer in range(1, LAYERS)]
                trace.append(tuple(judge(text, "", tuple(WORTH)).values()))
                layer = exit_layer(accepted.exit.rule, trace)
                flips += layer is not None and likeliest(trace[layer - 1]) != likeliest(trace[-1])
                assert tuple(WORTH)[likeliest(trace[-1])] == verdict(text)
    assert flips == 0
