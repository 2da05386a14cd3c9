"""Thoughts and paths with the texts that a task put around them."""

from rksc_tot.core.task import Path, Thought
from rksc_tot.core.tree import ReasoningTree, SurroundingText

PATH = Path((Thought("3 * 14", observation="= 42\n"), Thought("so"), Thought(" 42", closing="\nThe answer is")))


def test_the_text_of_a_path_has_closings_and_observations():
    assert PATH.text == "3 * 14\n= 42\nso\nThe answer is 42"
    assert Path((Thought("a"), Thought("b"))).text == "a\nb"


def test_a_reloaded_tree_has_closings_and_observations():
    tree = ReasoningTree()
    node = tree.add()
    for thought in PATH:
        node = tree.add(node, text=thought.text, around=SurroundingText.of(thought))
    again = ReasoningTree.from_json(tree.to_json())
    assert again == tree
    assert again.path(again[3]) == PATH
