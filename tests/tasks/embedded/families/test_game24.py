"""Training documents: correct targets, and no held-out puzzles or states."""

import json
import random
from importlib.resources import files
from itertools import product

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.tasks.embedded.families.game24.documents import Generator, held_out
from rksc_tot.tasks.game24.arithmetic import reachable
from rksc_tot.tasks.game24.prompts import QUESTION, prompt_text
from rksc_tot.tasks.game24.puzzles import read_puzzles
from rksc_tot.tasks.game24.tokenizer import TRIES, build_tokenizer
from rksc_tot.tasks.game24.world import LARGEST, combine, good_steps, legal_steps, reaches, value_label

EXCLUDED = [(4, 5, 6, 10), (1, 2, 4, 7)]


@pytest.fixture(scope="module")
def unseen():
    return held_out(EXCLUDED)


@pytest.fixture(scope="module")
def documents(unseen):
    source = Generator(random.Random(0), unseen)
    return [draw() for draw in (source.value, source.steps, source.solve) for _ in range(1500)]


def numbers(text):
    return tuple(int(word) for word in text.split() if word.isdigit())


def learned(document, kind):
    """The words of the targets of one kind, in the order of their places."""
    return [t.word for t in sorted(document.targets, key=lambda target: -target.back) if t.kind == kind]


def states(document):
    """The prompt's numbers and what each line leaves."""
    found = [numbers(document.prompt)]
    for line in document.body.replace("<eos>", "").splitlines():
        found += [numbers(line.partition("(left:")[2].rstrip(")"))]
    return found


def test_held_out_states_and_roots_occur_nowhere_in_training(documents, unseen):
    assert len(unseen.states) > 300
    for document in documents:
        path = states(document)
        assert not set(path) & unseen.states
        assert path[0] not in unseen.roots


def test_excluded_puzzles_are_held_out_as_roots(unseen):
    assert set(EXCLUDED) <= unseen.roots
    assert not set(EXCLUDED) & (set(unseen.root_puzzles) | set(unseen.state_puzzles))


def test_every_good_state_of_a_state_puzzle_is_held_out(unseen):
    for puzzle in unseen.state_puzzles:
        assert {step.after for step in good_steps(puzzle)} <= unseen.states


def test_held_out_states_are_not_all_of_one_kind(unseen):
    good = sum(map(reaches, unseen.states))
    assert 0.2 < good / len(unseen.states) < 0.3


def test_the_held_out_sets_are_deterministic():
    assert held_out(EXCLUDED) == held_out(EXCLUDED)


def test_every_line_of_a_path_is_a_legal_step(documents):
    for document in documents:
        path = states(document)
        for before, line in zip(path, document.body.replace("<eos>", "").splitlines(), strict=False):
            assert line in {str(step) for step in legal_steps(before)}


def test_chains_end_in_24(documents):
    for document in documents:
        if document.prompt.startswith("solve"):
            assert states(document)[-1] == (24,)


def test_the_value_question_is_answered_by_the_solver(documents):
    asked = [d for d in documents if d.question]
    for document in asked:
        state = states(document)[-1]
        assert learned(document, "label") == [" " + value_label(state)]
        if len(state) <= 3:
            assert (" yes" in learned(document, "verdict")) == (len(state) > 1 and reaches(state))
        for position, result in zip(TRIES, learned(document, "result"), strict=True):
            i, op, j = int(position[0]) - 1, position[1], int(position[2]) - 1
            made = combine(state[i], state[j], op) if j < len(state) else None
            assert result == (" no" if made is None else f" {made}")
    labels = [label for document in asked for label in learned(document, "label")]
    assert 0.4 < labels.count(" impossible") / len(labels) < 0.6


def test_reachable_in_the_models_world_is_reachable_in_exact_fractions():
    for puzzle in random.Random(0).sample(list(product(range(1, 14), repeat=4)), 60):
        if reaches(tuple(sorted(puzzle))):
            assert reachable(puzzle, 24)


def test_the_tokenizer_gives_back_every_letter(documents):
    tokenizer = build_tokenizer()
    for document in documents[::7]:
        text = document.prompt + document.body.replace("<eos>", "") + QUESTION
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids


def test_every_number_is_one_token():
    tokenizer = build_tokenizer()
    for n in range(LARGEST + 1):
        assert len(tokenizer.encode(str(n))) == len(tokenizer.encode(f" {n}")) == 1


def test_puzzle_files_are_read_by_rank(tmp_path):
    file = tmp_path / "ranked.csv"
    file.write_text("Rank,Puzzles\n1,1 1 4 6\n2,11 1 1 11\n3,1 1 3 8\n", encoding="utf-8")
    assert read_puzzles(file, "2-3") == [(1, 1, 11, 11), (1, 1, 3, 8)]
    for rows, message in {"9-10": "no puzzle of a rank in 9-10 - check --rows", "a-b": "not a range"}.items():
        with pytest.raises(ConfigError, match=message):
            read_puzzles(file, rows)
    with pytest.raises(ConfigError, match="no puzzle file"):
        read_puzzles(tmp_path / "none.csv", "1-2")
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="lacks a column"):
        read_puzzles(file, "1-2")


def test_every_puzzle_of_a_file_is_read_where_no_rows_are_named(tmp_path):
    file = tmp_path / "ranked.csv"
    file.write_text("Rank,Puzzles\n-5,1 1 4 6\n2000000,1 1 3 8\n", encoding="utf-8-sig")
    assert read_puzzles(file) == [(1, 1, 4, 6), (1, 1, 3, 8)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"Rank,Puzzles\n1,1 1 4 6\nx,1 2 3 4\n", "line 3: Rank is 'x', not whole numbers"),
        (b"Rank,Puzzles\n1,1 2 three 4\n", "line 2: Puzzles is '1 2 three 4', not whole numbers"),
        (b"Rank,Puzzles\n1\n", "line 2: Puzzles is empty"),
        (b"Rank,Puzzles\n1,\n", "line 2: Puzzles is empty"),
        (b"Rank,Puzzles\n1," + b"1" * 200_000 + b"\n", "cannot be read: field larger than"),
        (b"Rank,Puzzles\n1," + b"1" * 5_000 + b"\n", "line 2: Puzzles is '111"),
        (b"\xff\xfe\x00Rank,Puzzles\n", "cannot be read: 'utf-8"),
    ],
)
def test_an_error_in_a_puzzle_file_names_its_line(tmp_path, content, says):
    file = tmp_path / "ranked.csv"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        read_puzzles(file, "1-10")


def test_the_message_on_an_empty_file_does_not_mention_rows(tmp_path):
    file = tmp_path / "ranked.csv"
    file.write_text("Rank,Puzzles\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has no puzzle - write one puzzle on each line"):
        read_puzzles(file)


def test_the_shipped_held_out_puzzles_are_solvable_and_disjoint():
    sets = json.loads((files("rksc_tot.tasks.game24") / "weights" / "held_out.json").read_text(encoding="utf-8"))
    roots, apart = ([numbers(p) for p in sets[name]] for name in ("roots", "states"))
    assert (len(set(roots)), len(set(apart))) == (100, 50)
    assert all(map(reaches, roots + apart))
    assert not set(roots) & set(apart)


def test_prompts_name_the_role():
    assert prompt_text("steps", (4, 5, 6, 10)) == "steps 4 5 6 10\n"
