"""A tree survives JSON unchanged; anything else is refused in one line."""

import json
import math

import networkx as nx
import pydot
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


def test_infinite_numbers_and_nan_survive_json():
    def refuse(constant):
        raise ValueError(constant)

    text = small_tree().to_json()
    json.loads(text, parse_constant=refuse)
    again = ReasoningTree.from_json(text)
    assert again[1].logprobs == (-math.inf,)
    assert math.isnan(again[2].logprobs[0])
    assert again.to_json() == text


def test_a_tree_reloaded_from_its_file_equals_the_tree(tmp_path):
    tree, file = small_tree(), tmp_path / "tree"
    text = tree.to_json(file)
    again = ReasoningTree.from_json(file)
    assert again == tree
    assert again.to_json() == text
    assert list(again.graph.edges) == list(tree.graph.edges)


def test_trees_with_one_different_score_are_not_equal():
    tree = small_tree()
    tree[1].score = 0.75
    assert tree != small_tree()


def test_repr_counts_nodes_and_depth():
    assert repr(small_tree()) == "<ReasoningTree of 3 nodes, depth 2>"
    assert repr(ReasoningTree()) == "<ReasoningTree of 0 nodes, depth 0>"


def test_graphml_holds_every_node_with_its_record(tmp_path):
    tree, file = small_tree(), tmp_path / "tree.graphml"
    tree.to_graphml(file)
    graph = nx.read_graphml(file, node_type=int)
    assert [json.loads(data["record"]) for _, data in sorted(graph.nodes(data=True))] == tree.to_records()
    assert list(graph.edges) == list(tree.graph.edges)


def test_dot_holds_every_edge_and_every_text_as_a_label(tmp_path):
    tree, file = small_tree(), tmp_path / "tree.dot"
    tree.to_dot(file)
    [graph] = pydot.graph_from_dot_file(str(file))
    labels = {int(node.get_name()): node.get("label") for node in graph.get_nodes() if node.get_name().isdecimal()}
    assert labels[1] == '"a \\"b\\"\\n\\\\ é\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"'
    assert sorted(labels) == [0, 1, 2]
    assert {(edge.get_source(), edge.get_destination()) for edge in graph.get_edges()} == {("0", "1"), ("1", "2")}


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
def test_json_without_a_tree_is_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^the text is not a tree in JSON: ") as caught:
        ReasoningTree.from_json(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["", "hello", "digraph {", "<graphml/>"])
def test_a_file_without_a_tree_is_refused_in_one_line(text, tmp_path):
    file = tmp_path / "tree"
    file.write_text(text)
    with pytest.raises(ConfigError, match="tree' is not a tree in JSON: ") as caught:
        ReasoningTree.from_json(file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nothing' cannot be read: No such file"):
        ReasoningTree.from_json(tmp_path / "nothing")


HALF = "a\ud800"


@pytest.mark.parametrize(
    "record",
    [
        *({field: HALF} for field in ("branch", "text", "pruned")),
        *({"around": {field: HALF}} for field in ("lead", "closing", "ending", "observation")),
        {"thinking_block": {"text": HALF}},
        {"labels": {HALF: 1.0}},
    ],
    ids=ascii,
)
def test_a_record_that_could_not_be_written_again_is_refused(record):
    with pytest.raises(ConfigError, match="node 0 holds half a character"):
        ReasoningTree.from_json(json.dumps([{"id": 0, **record}]))
