"""The tables of docs/benchmarks.md and README.md, made from the newest results, and the index of benchmarks/README.md.

    python -m benchmarks.harness.tables [--check]

benchmarks/results/shown.toml says what is shown, and its goals. A table shows the newest figure of each row for each
processor; a figure of another commit than most of its column has that commit beside it. Text between the markers
`<!-- figures: NAME -->` and `<!-- /figures -->` is replaced. With --check, the exit status is 1 if a document differs.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Goal, cell, matching, middle
from benchmarks.harness.results import RESULTS, Result, results, shown_name
from tests.harness.checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
DOCUMENTS = ("docs/benchmarks.md", "README.md", "benchmarks/README.md")
ROOMS = ("laws", "speed", "faults", "scale", "simulation", "peers", "gpu")
_ORIGIN = "From docs/benchmarks.md of commit fe6cd16."
"""End of the notes of results taken from an older page; docs/benchmarks.md mentions it once for all."""
_MARKED = re.compile(r"(<!-- figures: ([\w ]+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


@functools.cache
def scripts() -> dict[str, str]:
    """Returns the module of each script that is run by hand, by the name of its results, room by room."""
    found = {}
    for room in ROOMS:
        for path in sorted([*(BENCHMARKS / room).glob("*.py"), *(BENCHMARKS / room).glob("*/__main__.py")]):
            if "__main__" in path.name or '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
                found[shown_name(module)] = module
    return found


def _documented(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def summary(module: str) -> str:
    """Returns the first paragraph of a script's docstring, in one line."""
    path = ROOT / Path(*module.split("."))
    path = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    return " ".join(_documented(path).partition("\n\n")[0].split())


class Page:
    """The selection of results that the documents show.

    shown: shown.toml as tomllib reads it; scripts without an entry are left out. found: results, the newest first.
    """

    def __init__(self, shown: Mapping[str, Any], found: Sequence[Result]):
        self._shown = shown
        self._found = found

    def text(self, name: str) -> str:
        """Returns the text between the markers of a name: goals, first screen, index, or a room. Raises KeyError for
        others."""
        if name == "goals":
            return self._goals()
        if name == "first screen":
            return self._first_screen()
        if name == "index":
            return _index()
        if name not in ROOMS:
            raise KeyError(name)
        return self._room(name)

    def _of(self, benchmark: str) -> list[Result]:
        return [each for each in self._found if each.benchmark == benchmark]

    def _goals(self) -> str:
        lines = ["| promised | goal | newest figure of each processor | measured by |", "|---|---|---|---|"]
        for promise in self._shown["promise"]:
            goal = Goal.read(promise["goal"])
            newest: dict[str, str] = {}
            for result in self._of(promise["benchmark"]):
                values = list(matching(self._newest(result.benchmark, result.processor), promise["figures"]).values())
                if values and result.processor not in newest:
                    value = goal.worst([each for each, _ in values])
                    commit = next(source.commit for each, source in values if each == value)
                    missed = "" if goal.reached(value) else ", **missed**"
                    newest[result.processor] = f"{cell(value)}{missed} ({result.processor}, {commit})"
            unit = f" {promise['unit']}" if "unit" in promise else ""
            name = promise["benchmark"]
            lines.append(f"| {promise['text']} | {goal}{unit} | {'; '.join(newest.values())} | [{name}](#{name}) |")
        return "\n".join(lines)

    def _newest(self, benchmark: str, processor: str) -> dict[str, tuple[object, Result]]:
        """Returns the newest value of each figure on a processor, and the result that has it."""
        newest: dict[str, tuple[object, Result]] = {}
        for result in self._of(benchmark):
            if result.processor == processor:
                for name, value in result.figures.items():
                    newest.setdefault(name, (value, result))
        return newest

    def _room(self, room: str) -> str:
        parts: list[str] = []
        for name, module in scripts().items():
            if module.split(".")[1] == room and name in self._shown:
                said = [summary(module), self._shown[name].get("text", "")]
                parts.append(f"### {name}\n\n{' '.join(said).strip()}\n")
                parts += self._script(name)
        return "\n".join(parts).rstrip("\n")

    def _script(self, name: str) -> list[str]:
        """Returns the tables of a script, and the conditions of the results that these or the goals show."""
        shown = self._shown[name]
        ours = self._of(name)
        parts: list[str] = []
        if "figures" in shown:
            goals = {pattern: Goal.read(goal) for pattern, goal in shown.get("goals", {}).items()}
            parts.append(self._table(name, shown["figures"], goals))
        patterns = [*shown.get("figures", ())]
        for promise in self._shown["promise"]:
            patterns += promise["figures"] if promise["benchmark"] == name else ()
        used: list[Result] = []
        for processor in dict.fromkeys(result.processor for result in ours):
            used += [source for _, source in matching(self._newest(name, processor), patterns).values()]
        for figure, columns in shown.get("tables", {}).items():
            newest = next((result for result in ours if figure in result.figures), None)
            if newest is not None:
                parts.append(f"{figure}:\n\n{_rows(newest.figures[figure], columns)}\n")
                used.append(newest)
        return [*parts, "\n".join(_conditions(result) for result in ours if result in used) + "\n"]

    def _table(self, benchmark: str, patterns: Sequence[str], goals: Mapping[str, Goal]) -> str:
        processors = list(dict.fromkeys(result.processor for result in self._of(benchmark)))
        columns = {each: self._newest(benchmark, each) for each in processors}
        rows: list[str] = []
        for pattern in patterns:
            for figures in columns.values():
                rows += [name for name in figures if fnmatch.fnmatchcase(name, pattern) and name not in rows]
        columns = {each: figures for each, figures in columns.items() if any(row in figures for row in rows)}
        main = {
            each: _main_commit([figures[row][1] for row in rows if row in figures]) for each, figures in columns.items()
        }
        heads = [f"{processor}, {main[processor]}" for processor in columns]
        lines = ["| | goal | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
        for row in rows:
            goal = next((goal for pattern, goal in goals.items() if fnmatch.fnmatchcase(row, pattern)), None)
            cells = []
            for processor, figures in columns.items():
                value, result = figures.get(row, (None, None))
                said = cell(value)
                if goal is not None and value is not None and not goal.reached(value):
                    said += ", **missed**"
                if result is not None and result.commit != main[processor]:
                    said += f", at {result.commit}"
                cells.append(said)
            lines.append(f"| {row.replace('_', ' ')} | {goal or ''} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def _first_screen(self) -> str:
        shown = self._shown["first_screen"]
        lines = []
        used: list[Result] = []
        for processor in shown["processors"]:
            for block in shown["block"]:
                wanted = [figure for row in block["rows"] for figures in row["figures"] for figure in figures]
                ours = [
                    result
                    for result in self._of(shown["benchmark"])
                    if result.processor == processor and all(figure in result.figures for figure in wanted)
                ]
                if not ours:
                    raise KeyError(f"no result of {processor} has all figures of the first screen: {wanted}")
                used.append(ours[0])
                for row in block["rows"]:
                    # several figures of one kind: the best arrangement counts
                    best = [max(middle(ours[0].figures[each]) for each in figures) for figures in row["figures"]]
                    cells = " | ".join(f"**{value:.0f}**" if row.get("ours") else f"{value:.0f}" for value in best)
                    lines.append(f"| {row['text']} | {cells} | {processor}, {ours[0].commit} |")
        head = "| | " + " | ".join(shown["columns"]) + " | processor, commit |"
        return "\n".join([head, "|---" * (len(shown["columns"]) + 2) + "|", *lines])


def _main_commit(found: Sequence[Result]) -> str:
    """Returns the commit that most figures are from."""
    commits = [each.commit for each in found]
    return max(dict.fromkeys(commits), key=commits.count)


def _rows(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    lines = ["| " + " | ".join(column.replace("_", " ") for column in columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def _conditions(result: Result) -> str:
    """Returns the machine, the command and the note of a result, in one line."""
    cores = result.machine["cores"]
    parts = [f"{result.processor}, commit {result.commit}"]
    parts += [f"{cores} cores"] if cores else []
    parts += [" ".join(each) for each in result.versions.items()]
    command = f". `{result.command}`" if result.command else ""
    note = (result.note or "").removesuffix(_ORIGIN).rstrip()
    return f"- {', '.join(parts)}{command}{'. ' + note if note else ''}"


def _index() -> str:
    parts = []
    for room in ROOMS:
        parts.append(f"**{_documented(BENCHMARKS / room / '__init__.py')}**\n\n| | |\n|---|---|")
        parts += [
            f"| `python -m {module}` | {summary(module)} |"
            for module in scripts().values()
            if module.split(".")[1] == room
        ]
        parts.append("")
    return "\n".join(parts).rstrip("\n")


def made(text: str, page: Page) -> str:
    """Returns a document with the text between its markers replaced."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{page.text(found[2])}\n\n{found[3]}", text)


def main() -> int:
    """Writes the documents, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; name the documents that differ")
    options = parser.parse_args()
    page = Page(tomllib.loads((RESULTS / "shown.toml").read_text(encoding="utf-8")), results())
    status = 0
    for document in DOCUMENTS:
        path = ROOT / document
        old = path.read_text(encoding="utf-8")
        new = made(old, page)
        if new == old:
            continue
        if options.check:
            print(f"{document} is out of date; run python -m benchmarks.harness.tables", file=sys.stderr)
            status = 1
        else:
            path.write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
