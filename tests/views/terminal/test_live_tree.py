import io
import random

import pytest
from rich.console import Console

from rksc_tot.core.events import Added, BudgetHit, Event, Finished, Merged, Pruned, Rejected, Scored
from rksc_tot.core.tree import ReasoningTree
from rksc_tot.views.terminal import LiveTree, TreeView


def search(levels=3, k=16, b=5, text="10 - {} = 6 (left: 5 6 6)"):
    """Events of a breadth-first search, and the id of its best node."""
    tree, rng, events = ReasoningTree(), random.Random(0), []
    beam = [tree.add()]
    for _ in range(levels):
        children = []
        for parent in beam:
            for i in range(k):
                node = tree.add(parent, text=text.format(i))
                children.append((rng.random(), node))
                events += [Added(node=node), Scored(node=node.id, score=children[-1][0])]
            events += [
                Rejected(parent=parent.id, text="?", reason="no step"),
                Merged(parent=parent.id, into=node.id, text="!"),
            ]
        children.sort(key=lambda pair: -pair[0])
        events += [Pruned(node=node.id, reason=f"not among the best {b}") for _, node in children[b:]]
        beam = [node for _, node in children[:b]]
    return [*events, Finished(node=beam[0].id, answer="24")], beam[0].id


def shown(events, *, title="4 5 6 10", terminal=False, **options):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80, height=30, **options)
    with LiveTree(title, console=console) as live:
        for event in events:
            live.update(event)
    return console.file.getvalue()


def test_a_large_tree_fits_a_screen_with_best_path_and_frontier_shown():
    events, best = search(levels=7)
    view = TreeView()
    for event in events:
        view.apply(event)
    assert view.totals["nodes"] > 480
    assert view.best == best
    lines = shown(events).splitlines()
    assert len(lines) <= 45
    assert sum("▶" in line for line in lines[:-2]) == 7
    assert any("● 24" in line for line in lines[:-2])


def test_every_thought_is_either_shown_or_counted_as_folded():
    events, _ = search()
    lines = shown(events).splitlines()
    opened = sum("(left:" in line for line in lines)
    folded = sum(int(line.split("… ")[1].split(" folded")[0]) for line in lines[:-2] if " folded" in line)
    assert opened + folded == int(lines[-1].split(" nodes")[0])
    rejected = sum(int(line.split(" rejected")[0].split()[-1]) for line in lines[:-1] if "rejected" in line)
    assert f"{rejected} rejected" in lines[-1]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_no_line_is_wider_than_the_terminal(width):
    console = Console(file=io.StringIO(), width=width)
    with LiveTree("long " * 50, console=console) as live:
        for event in search(levels=30, k=2, b=1, text="語" * 300)[0]:
            live.update(event)
    assert all(Console().measure(line).maximum <= width for line in console.file.getvalue().splitlines())


def test_scores_survive_a_thought_that_is_too_long():
    tree = ReasoningTree()
    node = tree.add(tree.add(), text="word " * 100)
    assert "19.5" in shown([Added(node=node), Scored(node=node.id, score=19.5)])


@pytest.mark.parametrize(
    "text", ["[bold red]x[/]", "[/]", "\x1b[2J\x1b]0;t\x07", "a\nb\r\nc", "\u202e\u0000\ud800", "", "\\[x]"]
)
def test_model_text_is_shown_without_markup_and_control_characters(text):
    tree = ReasoningTree()
    node = tree.add(tree.add(), text=text)
    out = shown([Added(node=node), Rejected(parent=0, text=text, reason=text), BudgetHit(reason=text)], title=text)
    assert all(c.isprintable() or c == "\n" for c in out)
    if text.startswith("[bold"):
        assert text in out


def test_a_pipe_gets_the_tree_once_and_without_colour():
    out = shown(search()[0])
    assert "\x1b" not in out
    assert out.count("4 5 6 10") == 1


def test_on_a_terminal_the_tree_is_redrawn_in_place():
    out = shown(search()[0], terminal=True)
    assert "\x1b[" in out
    assert "▶" in out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_sign_of_the_tree_is_explained_under_it(encoding):
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=80)
    events, _ = search()
    with LiveTree("p", console=console) as live:
        for event in events:
            live.update(event)
    console.file.seek(0)
    *tree, legend, _ = console.file.read().splitlines()
    for sign in ("▶", "●", "×", "pruned", "…") if encoding == "utf-8" else (">", "=", "x", "pruned", "..."):
        assert any(sign in line for line in tree)
        assert sign in legend


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", "≈"), ("ascii", "~")])
def test_nodes_and_scores_on_approximate_kv_have_a_sign_in_the_legend(encoding, sign):
    def drawn(thought, score):
        tree = ReasoningTree()
        node = tree.add(tree.add(), text="a step", exact=thought)
        file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with LiveTree("p", console=Console(file=file, width=80)) as live:
            live.update(Added(node=node))
            live.update(Scored(node=1, score=0.5, exact=score))
        file.seek(0)
        _, line, *_, legend, _ = file.read().splitlines()
        return line.strip(), legend

    for thought, score in ((True, True), (False, True), (True, False), (False, False)):
        line, legend = drawn(thought, score)
        assert line.endswith(f"a step{'' if thought else f' {sign}'}  {'' if score else sign}0.5")
        assert (f"{sign} on approximate KV" in legend) == (not (thought and score))


def test_long_text_is_cut_on_an_ascii_terminal():
    tree = ReasoningTree()
    node = tree.add(tree.add(), text="a step " * 40)
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with LiveTree("p", console=Console(file=file, width=60)) as live:
        live.update(Added(node=node))
        live.update(BudgetHit(reason="the budget of tokens is used up " * 4))
    file.seek(0)
    assert max(map(len, file.read().splitlines())) <= 60


def test_nothing_is_written_without_events():
    assert shown([]) == ""


def test_an_unknown_event_or_node_is_ignored():
    class Other(Event):
        kind: str = "other"

    view = TreeView()
    for event in (Other(), Scored(node=9, score=1), Pruned(node=9, reason=""), Finished(node=9, answer="")):
        view.apply(event)
    assert view.best == 0
    view.set_best(9)
    assert view.best == 0


def test_a_complete_path_is_marked_neither_right_nor_wrong():
    assert not set("✓✗") & set(shown([event for event in search()[0] if not isinstance(event, Pruned)]))


def test_the_chosen_node_is_marked():
    events, best = search()
    view = TreeView()
    for event in events:
        view.apply(event)
    other = next(id for id in view.nodes if id not in (0, best))
    view.set_best(other)
    assert view.best == other
    assert other in view.open_nodes(5)
