"""Size and shape of the product, as two tables: `python -m scripts.docs.sizes` prints them.

Lines are those of hand-written Python: no stubs, and no synchronous clients, which are generated. A room is a package
or module just below a package, in `draftwire_core` one level deeper. Arrows are the imports between rooms, late ones
included and imports for types alone left out; floors are the rooms of the longest chain of arrows.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from scripts.docs.module_catalogue import GENERATED, PACKAGES, ROOT

SMALL, LARGE, CROWDED = 40, 300, 16
"""Lines below which a file is small, lines above which a class is large, and files above which a folder is crowded."""
_GENERATED_FILE = "# Generated from "

Graph = Mapping[str, set[str]]
"""The imports of each node."""


@dataclass(frozen=True)
class SourceFile:
    """A hand-written file of the product."""

    path: Path
    """From the root of the checkout."""
    text: str = field(repr=False)

    @property
    def module(self) -> str:
        """The dotted name of the module."""
        return ".".join(part for part in self.path.with_suffix("").parts if part not in ("sdk", "__init__"))

    @property
    def room(self) -> str:
        """The room it belongs to."""
        parts = self.module.split(".")
        return ".".join(parts[: 3 if parts[0] == "draftwire_core" else 2])

    @cached_property
    def lines(self) -> int:
        """Number of lines of the file."""
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax of the file."""
        return ast.parse(self.text)

    @cached_property
    def is_small(self) -> bool:
        """Whether it is short enough to ask for a place in another file; packages that only re-export names are not."""
        if self.lines >= SMALL or self.path.name == "__main__.py":
            return False
        return self.path.name != "__init__.py" or not all(map(_re_exports, self.tree.body))

    @cached_property
    def classes(self) -> list[tuple[str, int]]:
        """Classes of the file, each with the number of its lines."""
        found = [each for each in self.tree.body if isinstance(each, ast.ClassDef)]
        return [(each.name, (each.end_lineno or 0) - each.lineno + 1) for each in found]

    def imports(self, modules: set[str]) -> set[str]:
        """Returns which of some modules it imports, at whatever point."""
        found: set[str] = set()
        for node in _statements(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{each.name}" for each in node.names}
                found |= (inner & modules) or {node.module}
            elif isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
        return (found & modules) - {self.module}


def _statements(inside: ast.AST) -> Iterator[ast.stmt]:
    """Yields all statements but those for types, without a look at expressions, of which there are many more."""
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for each in getattr(inside, name, ()):
            if isinstance(each, ast.If) and isinstance(each.test, ast.Name) and each.test.id == "TYPE_CHECKING":
                continue
            if isinstance(each, ast.stmt):
                yield each
            yield from _statements(each)


def _re_exports(statement: ast.stmt) -> bool:
    """Returns whether a statement is an import, a docstring or a list of names."""
    if isinstance(statement, ast.Assign):
        return all(isinstance(each, ast.Name) and each.id == "__all__" for each in statement.targets)
    return isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr)


@cache
def product() -> tuple[SourceFile, ...]:
    """Returns all files of the product."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    files = (SourceFile(path.relative_to(ROOT), path.read_text(encoding="utf-8")) for path in paths)
    return tuple(
        each
        for each in files
        if not each.path.as_posix().startswith(GENERATED) and not each.text.startswith(_GENERATED_FILE)
    )


def graphs() -> tuple[Graph, Graph]:
    """Returns the imports of files and those of rooms."""
    modules = {each.module: each for each in product()}
    files = {name: each.imports(set(modules)) for name, each in modules.items()}
    rooms: dict[str, set[str]] = defaultdict(set)
    for name, imported in files.items():
        rooms[modules[name].room] |= {modules[each].room for each in imported} - {modules[name].room}
    return files, rooms


def in_circles(graph: Graph) -> set[str]:
    """Returns the nodes that can be reached from themselves."""
    left = set(graph)
    while ends := {each for each in left if not graph[each] & left}:
        left -= ends  # what imports nothing that is left is in no circle
    return {each for each in left if each in _reached(each, graph)}


def _reached(start: str, graph: Graph) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += graph[each]
    return found


def floors(graph: Graph) -> int:
    """Returns the number of nodes of the longest chain; circles are left out."""
    left = set(graph) - in_circles(graph)
    height = 0
    while left:
        left -= {each for each in left if not graph[each] & left}
        height += 1
    return height


def repeated_classes() -> list[str]:
    """Returns the names of public classes that are twice in a package."""
    names = Counter((f.module.partition(".")[0], name) for f in product() for name, _ in f.classes)
    return [f"{package}: {name}" for (package, name), count in names.items() if count > 1 and name[0] != "_"]


def large_classes() -> list[str]:
    """Returns the classes with more than 300 lines."""
    return [f"{each.module}.{name}" for each in product() for name, lines in each.classes if lines > LARGE]


def crowded_folders() -> list[str]:
    """Returns the folders with more than 16 modules."""
    found = Counter(each.path.parent.as_posix() for each in product() if each.path.name != "__init__.py")
    return [name for name, count in found.items() if count > CROWDED]


def words_of_docs() -> int:
    """Returns the words of the documents and of the README."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sum(len(each.read_text(encoding="utf-8").split()) for each in pages)


def tables() -> Iterator[str]:
    """Yields the lines of the tables, in Markdown."""
    files, rooms = graphs()
    sdk = sum(each.lines for each in product() if each.path.parts[:2] == ("sdk", "draftwire"))
    yield from (
        "| | |",
        "|---|---|",
        f"| files of the product | {len(product())} |",
        f"| lines of the product | {sum(each.lines for each in product()):,} |",
        f"| lines of the SDK library | {sdk:,} |",
        f"| rooms; floors; arrows between rooms | {len(rooms)}; {floors(rooms)}; {sum(map(len, rooms.values()))} |",
        f"| files and rooms in circles of imports | {len(in_circles(files))} and {len(in_circles(rooms))} |",
        f"| classes over {LARGE} lines | {len(large_classes())} |",
        f"| public class names twice in a package | {len(repeated_classes())} |",
        f"| files under {SMALL} lines | {sum(each.is_small for each in product())} |",
        f"| folders over {CROWDED} files | {len(crowded_folders())} |",
        f"| words of docs | {words_of_docs():,} |",
        "",
        "| lines | room |",
        "|---|---|",
    )
    lines: Counter[str] = Counter()
    for each in product():
        lines[each.room] += each.lines
        if "." in each.room:
            lines[each.module.partition(".")[0]] += each.lines
    yield from (f"| {count:,} | `{name}` |" for name, count in lines.most_common() if count >= LARGE)


if __name__ == "__main__":
    print(*tables(), sep="\n")
