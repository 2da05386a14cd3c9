"""Breaches of the laws of the source: rooms, sizes and names, counted from the syntax trees.

``python -m benchmarks house [--json]``. Every import counts, also local imports and imports for type checkers.
:data:`FLOORS` gives the order of rooms; an import may point down or stay in its room.

* ``circles``: groups of files that import each other in a circle
* ``circles_of_siblings``: the same for the parts of one folder, a sub-folder counted as one part
* ``arrows_up``: imports of a higher room
* ``levels_over_10``: folders with more than ten entries (``__init__.py`` and the like do not count)
* ``files_over_350``: files with more than 350 lines; ``tests_over_350``: the same for tests
* ``classes_over_25``: classes with more than 25 methods
* ``names_twice``: class names that are defined more than once in product and benchmarks
* ``rooms``, ``arrows``, ``files``: their numbers, for comparison

A figure is a count; its ``.of`` lists the breaches.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx

from benchmarks.common.report import Quick, Report

HOME = Path(__file__).parents[2]
PRODUCT = "rksc_tot"
INSTALLED_AS = {"strategies": f"{PRODUCT}.strategies", "verifiers": f"{PRODUCT}.verifiers"}
ROOMS = (PRODUCT, *INSTALLED_AS, "benchmarks")
FLOORS = (
    ("",),  # the package itself, which re-exports names of all rooms
    ("cli",),
    ("views",),
    ("evaluation",),
    ("api",),
    ("strategies", "verifiers"),
    ("search",),
    ("tasks",),
    ("engine",),
    ("cache",),
    ("policies",),
    ("core",),
)
"""Rooms of the product from top to bottom."""
NO_ENTRIES = ("__init__.py", "__main__.py", "py.typed", "__pycache__")
ENTRIES, LINES, METHODS = 10, 350, 25


class SourceFile(NamedTuple):
    """A file and its import name."""

    path: Path
    name: str
    tree: ast.Module


def source_files(home: Path) -> Iterator[SourceFile]:
    """All files of the product and the benchmarks."""
    for top in ROOMS:
        for path in sorted((home / top).rglob("*.py")):
            first, *rest = path.relative_to(home).with_suffix("").parts
            parts = [INSTALLED_AS.get(first, first), *(part for part in rest if part != "__init__")]
            yield SourceFile(path, ".".join(parts), ast.parse(path.read_text(encoding="utf-8")))


def imports(files: list[SourceFile]) -> nx.DiGraph[str]:
    """The imports of each file, as a graph."""
    names = {file.name for file in files}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    for file in files:
        package = file.name if file.path.name == "__init__.py" else file.name.rpartition(".")[0]
        for node in ast.walk(file.tree):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                base = ".".join([*up, *([node.module] if node.module else [])])
                found = [full if (full := f"{base}.{alias.name}") in names else base for alias in node.names]
            graph.add_edges_from((file.name, name) for name in found if name in names and name != file.name)
    return graph


def circles(graph: nx.DiGraph[str]) -> list[str]:
    """Groups of nodes each of which reaches every other."""
    return sorted(" <-> ".join(sorted(group)) for group in nx.strongly_connected_components(graph) if len(group) > 1)


def circles_of_siblings(graph: nx.DiGraph[str]) -> list[str]:
    """Circles among the parts of each folder."""
    found: dict[str, nx.DiGraph[str]] = defaultdict(nx.DiGraph)
    for importer, imported in graph.edges:
        one, other = importer.split("."), imported.split(".")
        depth = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if depth:  # neither is the folder of the other
            found[".".join(one[:depth])].add_edge(".".join(one[: depth + 1]), ".".join(other[: depth + 1]))
    return sorted(circle for siblings in found.values() for circle in circles(siblings))


def floor(name: str) -> int | None:
    """The floor of a module, 0 at the top; None outside the product."""
    top, *rest = name.split(".")
    room = rest[0] if rest else ""
    return next((n for n, rooms in enumerate(FLOORS) if room in rooms), None) if top == PRODUCT else None


def arrows_up(graph: nx.DiGraph[str]) -> list[str]:
    """Imports from a higher floor, from another room on the same floor, and from benchmarks by the product."""
    found = []
    for importer, imported in graph.edges:
        here, there = floor(importer), floor(imported)
        if here is not None and (there is None or there < here or (there == here and room(importer) != room(imported))):
            found.append(f"{importer} -> {imported}")
    return sorted(found)


def room(name: str) -> str:
    """The room a module belongs to."""
    return ".".join(name.split(".")[:2])


def crowded(home: Path) -> list[str]:
    """Folders with too many entries."""
    found = []
    for top in ROOMS:
        for folder in sorted({path.parent for path in (home / top).rglob("*.py")}):
            entries = [path for path in folder.iterdir() if path.name not in NO_ENTRIES]
            if len(entries) > ENTRIES:
                found.append(f"{folder.relative_to(home)}: {len(entries)}")
    return found


def long(home: Path, paths: Iterator[Path]) -> list[str]:
    """Files with too many lines."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return [f"{path.relative_to(home)}: {count}" for path, count in lines.items() if count > LINES]


def classes(files: list[SourceFile]) -> Iterator[tuple[str, str, int]]:
    """File, name and number of methods of every class."""
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                yield file.name, node.name, methods


def twice(found: list[tuple[str, str, int]]) -> list[str]:
    """Class names that are defined more than once, with the places."""
    times = Counter(name for _, name, _ in found)
    return sorted(
        f"{name}: {', '.join(file for file, other, _ in found if other == name)}"
        for name, count in times.items()
        if count > 1
    )


def measure(home: Path) -> dict[str, Any]:
    """The figures of a source tree."""
    files = list(source_files(home))
    graph = imports(files)
    known = list(classes(files))
    product = {(room(a), room(b)) for a, b in graph.edges if floor(a) and floor(b) and room(a) != room(b)}
    offenders: Mapping[str, list[str]] = {
        "circles": circles(graph),
        "circles_of_siblings": circles_of_siblings(graph),
        "arrows_up": arrows_up(graph),
        "levels_over_10": crowded(home),
        "files_over_350": long(home, (file.path for file in files)),
        "tests_over_350": long(home, iter(sorted((home / "tests").rglob("*.py")))),
        "classes_over_25": [f"{file}.{name}: {count}" for file, name, count in known if count > METHODS],
        "names_twice": twice(known),
    }
    figures: dict[str, Any] = {name: len(found) for name, found in offenders.items()}
    figures |= {"rooms": len({each for pair in product for each in pair}), "arrows": len(product), "files": len(files)}
    return figures | {f"{name}.of": found for name, found in offenders.items() if found}


def main(quick: Quick = False) -> Report:
    """Count the breaches of the laws."""
    return Report(measure(HOME))
