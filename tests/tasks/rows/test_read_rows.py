"""Reading rows, their ids, and what is refused with a sentence."""

import json

import pytest

from rksc_tot.core.errors import ConfigError, MissingExtra
from rksc_tot.tasks.rows.read_rows import problems_of, read_rows


def written(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


def test_rows_are_the_same_from_json_lines_csv_and_dicts(tmp_path):
    rows = [{"question": "a, b\nc", "answer": "1"}, {"question": 'say "x"', "answer": "2"}]
    lines = written(tmp_path, "rows.jsonl", "".join(json.dumps(row) + "\n\n" for row in rows))
    table = written(tmp_path, "rows.csv", '\ufeffquestion,answer\n"a, b\nc",1\n\n"say ""x""",2\n')
    tabs = written(tmp_path, "rows.tsv", 'question\tanswer\n"a, b\nc"\t1\n"say ""x"""\t2\n')
    assert read_rows(lines) == read_rows(str(table)) == read_rows(tabs) == read_rows(iter(rows)) == rows


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_line_breaks_end_a_row_of_csv(tmp_path, mark, end):
    file = tmp_path / "rows.csv"
    file.write_bytes(f"question,answer{end}a{mark}b,1{end}".encode())
    assert read_rows(file) == [{"question": f"a{mark}b", "answer": "1"}]


@pytest.mark.parametrize("name", ["a\0b.jsonl", "a" * 5000 + ".jsonl"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_rows(name)


def test_a_data_set_is_read_as_the_mappings_that_it_yields():
    class DataSet:  # as those of the package datasets
        def __iter__(self):
            return iter([{"question": "a"}, {"question": "b"}])

    assert read_rows(DataSet()) == [{"question": "a"}, {"question": "b"}]


def test_a_folder_needs_the_package_datasets(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"pip install rksc-tot\[datasets\]"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("rows.jsonl", "", "holds no row - write each row as a line of JSON"),
        ("rows.csv", "", "holds no row - give at least one row"),
        ("rows.csv", "a,b\n", "holds no row"),
        ("rows.jsonl", '{"a": 1}\n[1]\n"x"\n', r"line 2 is \[1\], not an object; .*line 3 is 'x', not an object"),
        ("rows.jsonl", '{"a": 1\n', "line 1 is not JSON"),
        ("rows.jsonl", '{"a": NaN}\n', "line 1 is not JSON"),
        ("rows.csv", "a,b\n1,2,3\n", "line 2 has 3 cells, the first line has 2 - give each line one cell"),
        ("rows.csv", "a,a\n1,2\n", "two columns of the same name"),
        ("rows.csv", 'a,b\n"x"y,2\n', "line 2 is not CSV"),
        ("rows.csv", f"a\n{'x' * 200_000}\n", "field larger than field limit.*as JSON lines"),
        ("rows.txt", "a", r"neither JSON lines nor CSV - name a file that ends in .jsonl"),
    ],
)
def test_a_file_that_is_no_table_of_rows_is_refused(tmp_path, name, text, words):
    with pytest.raises(ConfigError, match=words):
        read_rows(written(tmp_path, name, text))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.jsonl", "'nowhere.jsonl' cannot be read: No such file"),
        ([], "the list of rows holds no row"),
        ([{"a": 1}, "b"], "row 2 is 'b' - give each row as a dict"),
        ([{1: 2}], r"row 1 is \{1: 2\}"),
        (
            {"train": [], "test": []},
            "a mapping with the keys train, test - give a list of rows; of a data set, one split",
        ),
        (3, "the rows are 3 - give a file"),
        ((1 / 0 for _ in "a"), "the rows raised ZeroDivisionError"),
    ],
)
def test_what_is_no_list_of_rows_is_refused(source, words):
    with pytest.raises(ConfigError, match=words):
        read_rows(source)


def test_rows_have_their_own_ids_or_their_numbers():
    rows = [{"id": "a"}, {"x": 1}, {"id": 7}]
    assert [problem.id for problem in problems_of(rows, "id")] == ["a", 2, 7]
    assert [problem.id for problem in problems_of(rows, None)] == [1, 2, 3]
    assert problems_of(rows, "id")[0].problem is rows[0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"id": "a"}, {}, {"id": "a"}],
            "rows 1 and 3 have the id 'a' - give each row an id of its own, or set id=None",
        ),
        ([{}, {"id": "1"}], "rows 1 and 2 have the id '1'"),
        ([{"id": 1.5}], "row 1 has the id 1.5 - give a string or a whole number"),
        ([{"id": None}], "row 1 has the id None"),
    ],
)
def test_a_missing_or_repeated_id_is_refused(rows, words):
    with pytest.raises(ConfigError, match=words):
        problems_of(rows, "id")


def test_a_field_of_ids_that_is_no_name_is_refused():
    with pytest.raises(ConfigError, match=r"the field of ids is \['id'\]"):
        problems_of([{"id": "a"}], ["id"])
