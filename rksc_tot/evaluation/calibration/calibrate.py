"""The procedure: search calibration problems in full, make candidate rules on a part of them, test them on the rest."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from pydantic import JsonValue, TypeAdapter, ValidationError

from rksc_tot.api.setup import verifier_of
from rksc_tot.api.solve import asolve
from rksc_tot.api.sync import run_async
from rksc_tot.core.errors import ConfigError, RkscTotError, TaskError
from rksc_tot.core.plugins.user_code import UserCodeError, calling_user_code, shown
from rksc_tot.core.seeds import stream_key
from rksc_tot.core.task import Path, Task
from rksc_tot.engine.base import Account, Engine, LabelRequest, Reader
from rksc_tot.evaluation.calibration.examples import Harvest, Traced
from rksc_tot.evaluation.calibration.mechanism_outcomes import outcomes_of
from rksc_tot.evaluation.problems import refuse_repeats
from rksc_tot.policies.early_exit.fixed_sequence_testing import examples_needed
from rksc_tot.search.approximate.calibration import Calibration, Probe
from rksc_tot.search.approximate.fingerprint import TaskFingerprint, revision_of, task_fingerprint, weights_of
from rksc_tot.search.task_calls import accept_root, validated
from rksc_tot.search.validation import question_fault
from rksc_tot.tasks import load_task

if TYPE_CHECKING:
    from rksc_tot.strategies.base import Strategy
    from rksc_tot.verifiers.base import Verifier

JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)
FITTING = 5  # one problem of so many makes the candidates


class CalibrationOptions(TypedDict, total=False):
    """What :func:`calibrate` hands on to :func:`acalibrate`."""

    strategy: Strategy | str
    verifier: Verifier | str
    delta: float
    alpha: float
    seed: int
    concurrency: int
    on_problem: Callable[[Any], None]


def calibrate(
    task: Task | str, problems: Sequence[Any], *, engine: Engine, **options: Unpack[CalibrationOptions]
) -> Calibration:
    """:func:`acalibrate` for code that is not async."""
    return run_async(acalibrate(task, problems, engine=engine, **options))


async def acalibrate(
    task: Task | str,
    problems: Sequence[Any],
    *,
    engine: Engine,
    strategy: Strategy | str = "bfs",
    verifier: Verifier | str = "lm_value",
    delta: float = 0.01,
    alpha: float = 0.05,
    seed: int = 0,
    concurrency: int = 8,
    on_problem: Callable[[Any], None] = lambda problem: None,
) -> Calibration:
    """Find out which decisions may be taken early.

    Each problem is searched in full with the verifier, whose labels are read after every layer. A fifth of the problems
    makes candidate rules, from strict to loose; of each of the others one random node (one random group of siblings) tests
    them by fixed-sequence testing (:mod:`rksc_tot.policies.early_exit.fixed_sequence_testing`). A mechanism none of whose
    candidates passes is refused,
    and the outcome says why.

    Parameters
    ----------
    task : Task or str
        It must have a question.
    problems : sequence
        Of the kind searches will meet, none of those to be evaluated on, each of them once; JSON must be able to hold them.
    engine : Engine
        The model that writes thoughts.
    strategy : Strategy or str
        How to search; which nodes there are depends on it.
    verifier : Verifier or str
        A verifier with labels: ``lm_value``, for a task with a question, or a process reward model.
    delta : float
        δ: of the decisions taken early, the share that may differ from those in full, 0..1.
    alpha : float
        α: the probability, 0..1, with which that promise may be broken.
    seed : int
        Of every random draw.
    concurrency : int
        Searches in flight together.
    on_problem : callable
        Called after each problem.

    Raises
    ------
    ConfigError
        If δ or α is out of range, there are too few problems for them (it says how many are needed), the engine cannot be
        looked at between its layers, or two labels begin with the same token. The last is found out before any search, if the
        task has its question at the root too; else the first question ends the calibration.
    TaskError
        If the task has no question, or its labels change from node to node.
    Exception
        The error of the first problem, if all of them failed.
    """
    task = load_task(task) if isinstance(task, str) else task
    shuffled = list(problems)
    random.Random(seed).shuffle(shuffled)
    fitting = len(shuffled) // FITTING
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}", hint="use at least 1")
    verifier = verifier_of(verifier)
    reader, own_labels = verifier.reader(engine), verifier.labels_for(None)
    _check(task, shuffled, fitting, reader, delta, alpha)
    if not own_labels:
        await _check_question(task, shuffled[0], engine, verifier)
    gate = asyncio.Semaphore(concurrency)
    errors: list[Exception] = []

    async def one(at: int, problem: Any) -> Searched | None:
        traced = Traced(of=verifier)
        async with gate:
            if _refusal(errors):
                return None
            try:
                result = await asolve(task, problem, engine=engine, strategy=strategy, verifier=traced, seed=seed)
            except Exception as error:  # a bad problem must not end the run, whatever a plug-in raises on it
                errors.append(error)
                return None
            finally:
                on_problem(problem)
        harvest = traced.harvest(result.tree)
        if at >= fitting:
            harvest = harvest.one_of_each(random.Random(stream_key(seed, "tested", at)))
        return Searched(problem, result.path, result.settings["strategy"], harvest)

    found = await asyncio.gather(*(one(at, problem) for at, problem in enumerate(shuffled)))
    done = [each for each in found if each is not None]
    if not done or _refusal(errors):
        raise _refusal(errors) or errors[0]
    probe, wording = _probe(task, done, bool(own_labels))
    labels = own_labels or wording.labels
    _check_labels(done, labels)
    fit, test = ([each.harvest for each in part if each is not None] for part in (found[:fitting], found[fitting:]))
    asked = [outside for harvest in test for outside in harvest.outside]
    return Calibration(
        model=reader.name,
        revision=revision_of(reader),
        weights=weights_of(reader),
        dtype=reader.numerics.get("dtype"),
        layers=reader.layers,
        task=task.name or type(task).__name__,
        prompt=wording.hash,
        probe=probe,
        labels=labels,
        verifier=verifier.fingerprint(),
        writer=None if reader is engine else weights_of(engine),
        strategy=done[0].strategy,
        delta=delta,
        alpha=alpha,
        seed=seed,
        problems=len(done),
        fitting=len(fit),
        outside=sum(asked) / len(asked) if asked else 0.0,
        date=dt.datetime.now(dt.UTC).date(),
        **outcomes_of(fit, test, delta, alpha, seed),
    )


class Searched(NamedTuple):
    """A problem, the best path its search found, the strategy with its settings, and what the search left behind."""

    problem: Any
    path: list[str]
    strategy: dict[str, Any]
    harvest: Harvest


def _check(task: Task, problems: Sequence[Any], fitting: int, reader: Reader, delta: float, alpha: float) -> None:
    """Refuse what cannot end well, before anything is searched."""
    needed = examples_needed(delta, alpha)
    if len(problems) - fitting < needed:
        least = needed + (needed - 1) // (FITTING - 1)
        raise ConfigError(
            f"testing rules at delta {delta:g} and alpha {alpha:g} takes at least {needed} problems, if there is no error "
            f"among them; {len(problems)} are given, of which {fitting} make the rules and {len(problems) - fitting} test them",
            hint=f"give {least} or more, or a larger delta",
        )
    if not reader.layers:
        raise ConfigError(f"{reader.name!r} allows no reads between its layers", hint="there is nothing to calibrate")
    for problem in problems:
        try:
            JSON.validate_python(problem)
        except ValidationError:
            raise ConfigError(
                f"the problem {shown(problem)} is nothing JSON can hold", hint="give problems as strings"
            ) from None
    refuse_repeats(task, problems)


async def _check_question(task: Task, problem: Any, engine: Engine, verifier: Verifier) -> None:
    """Refuse a task that asks nothing, or whose labels cannot be read between the layers; nothing is computed. Refuse a
    verifier that reads no labels.

    Whether there is a question, and which, is taken from the root. Where a question needs a thought, nothing is refused.
    """
    try:
        prompt, _ = accept_root(task, valid := validated(task, problem))
        with calling_user_code("question", RkscTotError):
            question = task.question(valid, Path())
    except (UserCodeError, RkscTotError):
        return
    if question is None:
        raise TaskError("the task has no question to be answered early", hint="write Task.question")
    if question_fault(question):
        return
    if not (labels := verifier.labels_for(question)):
        raise ConfigError(f"the verifier {verifier.name!r} reads no labels", hint="there is nothing to calibrate")
    late = Account(deadline=-math.inf)
    try:
        handle = engine.open(prompt, late)
        try:
            await engine.label([LabelRequest(handle, question.text, labels, trace=True)], late)
        finally:
            engine.release(handle)
    except ConfigError:
        raise
    except RkscTotError:  # the searches say what is wrong with a problem
        return


def _refusal(errors: Sequence[Exception]) -> ConfigError | None:
    """An error that is not about one problem: every search would end in it."""
    return next((error for error in errors if isinstance(error, ConfigError)), None)


def _probe(task: Task, searched: Sequence[Searched], own_labels: bool) -> tuple[Probe, TaskFingerprint]:
    """A path at which the task has a question, of the first problem that has one; with ``own_labels`` any path will do."""
    for problem, path, _, _ in searched:
        for thoughts in (path[:1], []):
            try:
                wording = task_fingerprint(task, problem, thoughts)
            except TaskError:  # it does not read back what it has made of a thought
                continue
            if wording.labels or own_labels:
                return Probe(problem=problem, thoughts=tuple(thoughts)), wording
    raise TaskError("the task has no question to be answered early", hint="write Task.question")


def _check_labels(searched: Sequence[Searched], wanted: tuple[str, ...]) -> None:
    sets = {labels for each in searched for labels in each.harvest.labels}
    if sets - {wanted}:
        raise TaskError(
            f"the labels change from node to node: {' / '.join(', '.join(labels) for labels in sorted(sets)[:3])}",
            hint="only a question with the same labels everywhere can be calibrated",
        )
