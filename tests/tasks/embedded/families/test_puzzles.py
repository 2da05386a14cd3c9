"""Families beside game24: correct targets, no held-out problems in training, and weights that solve them by search."""

import json
import random
from importlib.resources import files

import pytest

from rksc_tot import load_engine, solve
from rksc_tot.core.errors import ConfigError, ModelLoadError
from rksc_tot.tasks import load_task
from rksc_tot.tasks.embedded.families import countdown, sudoku4
from rksc_tot.tasks.embedded.family import load_family
from rksc_tot.tasks.puzzles.sudoku import Sudoku4

WEIGHTS = files("rksc_tot.tasks.embedded") / "weights"
NAMES = ("sudoku4", "countdown")


def documents(family, count=150):
    return next(family.batches(random.Random(0), count))


def label(document):
    return next((target.word for target in document.targets if target.kind == "label"), None)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_of_training_is_the_tasks_prompt_and_every_text_is_tokenised_without_loss(name):
    family, task = load_family(name), load_task(name)
    tokenizer = family.build_tokenizer()
    for document in documents(family, 30):
        text = document.prompt + document.body + document.question
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    problem = task.validate(next(task.generate_problems()))
    assert task.prompt(problem) in {
        "sudoku4": lambda: sudoku4.prompt_text(problem), "countdown": lambda: countdown.prompt_text(problem)
    }[name]()  # fmt: skip


def test_sudoku_labels_are_those_of_the_solver_and_no_grid_is_held_out():
    task = Sudoku4()
    family = load_family("sudoku4")
    held_out = sudoku4.held_out_grids()
    labels = []
    for document in documents(family):
        lines = document.prompt[len(sudoku4.INSTRUCTION) :].splitlines()[:4]
        puzzle = task.validate("".join(lines))
        grid = sudoku4.completed(puzzle, ())
        assert grid not in held_out
        rows = tuple(tuple(map(int, line.split())) for line in document.body.replace("<eos>", "").splitlines())
        if document.question:
            assert label(document) == (" yes" if sudoku4.completed(puzzle, rows) else " no")
            labels.append(label(document))
        cells = [target.word for target in document.targets if target.kind == "agrees"]
        assert len(cells) == 4 * len(rows)
        if " no" in cells:
            assert sudoku4.completed(puzzle, rows) is None
    assert 0.3 < labels.count(" yes") / len(labels) < 0.7


def test_countdown_labels_are_those_of_the_solver_and_no_set_of_numbers_is_held_out():
    held_out = countdown.held_out_sets()
    labels = []
    for document in documents(load_family("countdown")):
        head, _, target = document.prompt[len(countdown.INSTRUCTION) :].partition(countdown.BEFORE_TARGET)
        assert tuple(map(int, head.split())) not in held_out
        left = document.body.splitlines()[-1].partition("(left: ")[2].rstrip(")")
        state = tuple(map(int, left.split()))
        assert label(document) == (" yes" if countdown.reaches(state, int(target)) else " no")
        labels.append(label(document))
    assert 0.3 < labels.count(" yes") / len(labels) < 0.7


@pytest.mark.parametrize("name", NAMES)
def test_held_out_problems_ship_with_the_weights_and_the_task_accepts_them(name):
    shipped = json.loads((WEIGHTS / name / "held_out.json").read_text(encoding="utf-8"))
    assert shipped == load_family(name).held_out
    assert len(set(shipped["roots"])) == 100
    for problem in shipped["roots"][:10]:
        load_task(name).validate(problem)


@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_model_of_a_task_solves_a_held_out_problem(name):
    task = load_task(name)
    problem = load_family(name).held_out["roots"][7]
    with load_engine(task.default_model) as engine:
        assert engine.name == f"embedded:{name}"
        assert solve(task, problem, engine=engine, strategy="bfs").correct
    assert (WEIGHTS / name / "model.safetensors").stat().st_size < 10_000_000


def test_an_unknown_embedded_model_is_refused_with_the_known_ones():
    with pytest.raises(
        ModelLoadError, match=r"'embedded:chess' - there are embedded, embedded:countdown, embedded:sudoku4"
    ):
        load_engine("embedded:chess")


@pytest.mark.parametrize("name", NAMES)
def test_a_family_that_cannot_exclude_puzzles_says_so(name):
    with pytest.raises(ConfigError, match="excludes no puzzles"):
        load_family(name, [(1, 2, 3, 4)])
