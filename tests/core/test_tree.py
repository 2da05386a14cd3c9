"""A tree survives being written and read; what is no tree is refused in one line."""

import json
import math

import pytest

from rksc_tot.core.errors import ConfigError
from rksc_tot.core.tree import ReasoningTree

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pydot's, of pyparsing


def small_tree():
    tree = ReasoningTree()
    root = tree.add()
    node = tree.add(root, text='a "b"\n\\ é\x00\uffff', tokens=(1,), logprobs=(-math.inf,), branch="0", score=0.5)
    tree.add(node, text="", pruned="no", labels={"x": 0.5}, logprobs=(math.nan,))
    return tree


def through(form, tree, file):
    getattr(tree, f"to_{form}")(file)
    return getattr(ReasoningTree, f"from_{form}")(file)


def test_json_is_json_whatever_the_numbers_and_comes_back():
    def refuse(constant):
        raise ValueError(constant)

    text = small_tree().to_json()
    json.loads(text, parse_constant=refuse)
    again = ReasoningTree.from_json(text)
    assert again[1].logprobs == (-math.inf,)
    assert math.isnan(again[2].logprobs[0])
    assert again.to_json() == text


@pytest.mark.parametrize("form", ["json", "graphml", "dot"])
def test_files_come_back_as_they_were(form, tmp_path):
    tree = small_tree()
    again = through(form, tree, tmp_path / "tree")
    assert again.to_json() == tree.to_json()
    assert list(again.graph.edges) == list(tree.graph.edges)


@pytest.mark.parametrize("form", ["json", "graphml", "dot"])
def test_a_reloaded_tree_equals_the_tree(form, tmp_path):
    tree = small_tree()
    assert through(form, tree, tmp_path / "tree") == tree
    tree[1].score = 0.75
    assert tree != small_tree()
    assert repr(tree) == "<ReasoningTree of 3 nodes, depth 2>"
    assert repr(ReasoningTree()) == "<ReasoningTree of 0 nodes, depth 0>"


@pytest.mark.parametrize("form", ["json", "graphml", "dot"])
def test_a_file_that_cannot_be_written_is_named(form, tmp_path):
    with pytest.raises(ConfigError, match="tree' cannot be written: No such file"):
        getattr(small_tree(), f"to_{form}")(tmp_path / "nowhere" / "tree")


RECORDS = small_tree().to_records()


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", "null", '{"a": 1}', '["ab"]', "[1]", "[" * 100_000, None, 5, "[{}]",
        json.dumps(RECORDS[1:]), json.dumps([*RECORDS, RECORDS[0]]),
        json.dumps([RECORDS[0], RECORDS[1] | {"parent": 7}]), json.dumps([RECORDS[0], RECORDS[1] | {"parent": 1}]),
        json.dumps([RECORDS[0], RECORDS[1] | {"depth": 2}]),
        '[{"id": 0}, {"id": 1, "parent": 5}]', '[{"id": 0}, {"id": 1, "parent": 1}]', '[{"id": 0}, {"id": 1}]',
        '[{"id": 0, "parent": 0}]', '[{"id": 0}, {"id": 1, "parent": -1}]', json.dumps([RECORDS[0] | {"count": 0}]),
    ],
)  # fmt: skip
def test_what_is_no_tree_in_json_is_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^the text is not a tree in JSON: ") as caught:
        ReasoningTree.from_json(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["", "hello", "digraph{}", "digraph {", "graph {1 -- 2", 'digraph {0 [record="zz"]}', "<graphml/>"]
)
@pytest.mark.parametrize("form", ["json", "graphml", "dot"])
def test_what_is_no_tree_in_a_file_is_refused_in_one_line(form, text, tmp_path, capfd):
    file = tmp_path / "tree"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"tree' is not a tree in (?i:{form}): ") as caught:
        getattr(ReasoningTree, f"from_{form}")(file)
    assert "\n" not in str(caught.value)
    assert "NoneType" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("form", ["json", "graphml", "dot"])
def test_a_file_that_is_not_there_is_named(form, tmp_path):
    with pytest.raises(ConfigError, match="nothing' cannot be read: No such file"):
        getattr(ReasoningTree, f"from_{form}")(tmp_path / "nothing")
