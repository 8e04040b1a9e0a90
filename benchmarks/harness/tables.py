"""The tables of docs/benchmarks.md, README.md and benchmarks/results/goals.md, and the index of benchmarks/README.md.

    python -m benchmarks.harness.tables [--check]

benchmarks/results/shown.toml says what is shown, and its goals. A table shows the newest figure of each row for each
processor; a figure of another commit than most of its column has that commit next to it. Text between the markers
`<!-- figures: NAME -->` and `<!-- /figures -->` is replaced; NAME is a script, a comparison of engines, "goals",
or "index". With --check, the exit status is 1 if a document differs.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import functools
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import Goal, cell, matching, middle
from benchmarks.harness.results import RESULTS, Result, results, shown_name
from benchmarks.harness.sections import replaced
from tests.harness.checkout import ROOT

BENCHMARKS = ROOT / "benchmarks"
DOCUMENTS = ("docs/benchmarks.md", "README.md", "benchmarks/README.md", "benchmarks/results/goals.md")
ROOMS = ("laws", "real", "speed", "faults", "scale", "simulation", "peers", "gpu")


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
        """Returns the text between the markers of a name: goals, index, a comparison, or a script. Raises
        KeyError for others."""
        if name == "goals":
            return self._goals()
        if name == "index":
            return _index()
        if name in self._shown.get("comparison", ()):
            return self._comparison(self._shown["comparison"][name])
        return self._script(name)

    def _of(self, benchmark: str) -> list[Result]:
        return [each for each in self._found if each.benchmark == benchmark]

    def _goals(self) -> str:
        heads = ("promised", "goal", "newest figure", "processor, commit", "missed elsewhere", "measured by")
        lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for promise in self._shown["promise"]:
            name, goal = promise["benchmark"], Goal.read(promise["goal"])
            newest: dict[str, tuple[object, str]] = {}
            for result in self._of(name):
                if result.processor in newest or not matching(result.figures, promise["figures"]):
                    continue  # a newer result of a part alone does not make its processor the newest
                values = list(matching(self._newest(name, result.processor), promise["figures"]).values())
                value = goal.worst([each for each, _ in values])
                commit = next(source.commit for each, source in values if each == value)
                newest[result.processor] = value, f"{result.processor}, {commit}"
            (value, place), *others = newest.values()
            elsewhere = [f"{cell(middle(each), goal)} ({at})" for each, at in others if not goal.reached(each)]
            said = cell(middle(value), goal) + ("" if goal.reached(value) else ", **missed**")
            bound = f"{goal} {promise['unit']}" if "unit" in promise else str(goal)
            row = (promise["text"], bound, said, place, "; ".join(elsewhere), f"[{name}]({name})")
            lines.append(f"| {' | '.join(row)} |")
        return "\n".join(lines)

    def _newest(self, benchmark: str, processor: str) -> dict[str, tuple[object, Result]]:
        """Returns the newest value of each figure on a processor, and the result that has it."""
        newest: dict[str, tuple[object, Result]] = {}
        for result in self._of(benchmark):
            if result.processor == processor:
                for name, value in result.figures.items():
                    newest.setdefault(name, (value, result))
        return newest

    def _script(self, name: str) -> str:
        """Returns the tables of a script, and where its data are."""
        shown = self._shown[name]
        parts: list[str] = []
        if "figures" in shown:
            goals = {pattern: Goal.read(goal) for pattern, goal in shown.get("goals", {}).items()}
            parts.append(self._table(name, shown, goals))
        for figure, columns in shown.get("tables", {}).items():
            newest = next(result for result in self._of(name) if figure in result.figures)
            parts.append(f"{_rows(newest.figures[figure], columns)}\n\nCommit {newest.commit}, {newest.processor}.\n")
        return "\n".join([*parts, f"[Data, commands and conditions](../benchmarks/results/{name})"])

    def _table(self, benchmark: str, shown: Mapping[str, Any], goals: Mapping[str, Goal]) -> str:
        patterns: Sequence[str] = shown["figures"]
        processors = shown.get("processors") or list(dict.fromkeys(each.processor for each in self._of(benchmark)))
        columns = {each: self._newest(benchmark, each) for each in processors}
        rows: list[str] = []
        for pattern in patterns:
            for figures in columns.values():
                rows += [name for name in figures if fnmatch.fnmatchcase(name, pattern) and name not in rows]
        columns = {each: figures for each, figures in columns.items() if any(row in figures for row in rows)}
        main = {
            each: _main_commit([figures[row][1] for row in rows if row in figures]) for each, figures in columns.items()
        }
        heads = [*(["goal"] if goals else []), *(f"{processor}, {main[processor]}" for processor in columns)]
        lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for row in rows:
            goal = next((goal for pattern, goal in goals.items() if fnmatch.fnmatchcase(row, pattern)), None)
            cells = [f"{goal or ''}"] if goals else []
            for processor, figures in columns.items():
                value, result = figures.get(row, (None, None))
                said = cell(value, goal)
                if goal is not None and value is not None and not goal.reached(value):
                    said += ", **missed**"
                if result is not None and result.commit != main[processor]:
                    said += f", at {result.commit}"
                cells.append(said)
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def _comparison(self, shown: Mapping[str, Any]) -> str:
        """Returns a table of engines. shown: columns, and blocks of rows; all figures of a block are of one result.

        Processor and commit are a column, or a caption if all rows have the same.
        """
        rows: list[tuple[str, str]] = []
        for block in shown["block"]:
            form = block.get("figure", "{}")
            wanted = [form.format(each) for row in block["rows"] for names in row["figures"] for each in names]
            for processor in block["processors"]:
                ours = [
                    result
                    for result in self._of(shown["benchmark"])
                    if result.processor == processor and all(figure in result.figures for figure in wanted)
                ]
                if not ours:
                    raise KeyError(f"no result of {processor} has all figures of a block: {wanted}")
                for row in block["rows"]:
                    # several figures of one kind: the best arrangement counts
                    best = [
                        max((middle(ours[0].figures[form.format(each)]) for each in names), default=None)
                        for names in row["figures"]
                    ]
                    form_of = "**{:.0f}**" if row.get("ours") else "{:.0f}"
                    cells = " | ".join("–" if value is None else form_of.format(value) for value in best)
                    rows.append((f"| {row['text']} | {cells} |", f"{processor}, {ours[0].commit}"))
        head = "| | " + " | ".join(shown["columns"]) + " |"
        rule = "|---" * (len(shown["columns"]) + 1) + "|"
        if len({origin for _, origin in rows}) == 1:
            return "\n".join([head, rule, *(row for row, _ in rows), "", f"Processor and commit: {rows[0][1]}."])
        return "\n".join([f"{head} processor, commit |", f"{rule}---|", *(f"{row} {origin} |" for row, origin in rows)])


def _main_commit(found: Sequence[Result]) -> str:
    """Returns the commit that most figures are from."""
    commits = [each.commit for each in found]
    return max(dict.fromkeys(commits), key=commits.count)


def _rows(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    lines = ["| " + " | ".join(column.replace("_", " ") for column in columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(row.get(column)) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


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
    return replaced(text, page.text)


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
