"""The report of a comparison, as values, tables and Markdown."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from draftwire.cli.results import print_table
from draftwire_tools.bench.columns import ABOUT, FEW, FIGURES, FigureColumn, Row
from draftwire_tools.bench.comparison import Setting
from draftwire_tools.bench.figures import Figures
from draftwire_tools.bench.method import Method

LEAST_ACCEPTANCE = 0.5
"""Acceptance rate below which a method gets a warning."""
LEAST_EFFECT = 0.05
"""Smallest distance of a speed-up from 1 that counts as an effect."""
_NARROW = 80
"""Columns of a terminal that does not report its width."""
_WIDE = 120
"""Columns from which a terminal shows all figures."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a comparison, with the conditions of the measurement."""

    about: Mapping[str, str]
    """Machine, versions, models and settings."""
    figures: Sequence[Figures]
    """By setting and method."""
    memory: Mapping[str, int]
    """Resident bytes of drafter services by address, if known."""

    @property
    def broken(self) -> list[str]:
        """Returns violations of the promise of equal outputs, one line per method and setting."""
        return [
            f"{_subject(each)}: {each.differing} of {each.requests} outputs differ from plain decoding's"
            for each in self.figures
            if each.method.exact and each.differing
        ]

    @property
    def warnings(self) -> list[str]:
        """Returns warnings for the reader, one line each."""
        drafting = [each for each in self.figures if not each.method.is_plain]
        low = [
            f"{_subject(each)}: {each.acceptance_rate:.0%} of {each.draft_tokens} draft tokens accepted, below "
            f"{LEAST_ACCEPTANCE:.0%}: most of the verification was wasted, which pays only while the target has time "
            "to spare; expect less with more concurrent requests"
            for each in drafting
            if each.acceptance_rate is not None and each.acceptance_rate < LEAST_ACCEPTANCE
        ]
        none = [_without_drafts(each) for each in drafting if each.acceptance_rate is None]
        return [*self.broken, *self._load(), *self._few(), *low, *none]

    def _load(self) -> list[str]:
        """Returns a warning if the machine's load exceeded its cores."""
        load, cores = self.about.get("load", "").partition(" ")[0], self.about.get("cores", "")
        if not load or not cores.isdecimal() or float(load) <= int(cores):
            return []
        return [
            f"the load average was {load} on {cores} cores at the start: other work shared the processor, so times and "
            "speed-ups are unreliable"
        ]

    def _few(self) -> list[str]:
        """Returns a warning for each task with too few prompts for the concurrent requests that were asked for."""
        asked = int(self.about.get("concurrency", "1"))
        prompts = {each.setting.task: each.requests // each.runs for each in self.figures}
        return [
            f"{task}: at most {count} of {asked} concurrent requests ran at once, for want of prompts; raise --count "
            "or name more --prompts"
            for task, count in prompts.items()
            if count < asked
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the report as a JSON value."""
        methods = {each.method.name: each.method for each in self.figures}
        return {
            "benchmark": "draftwire bench",
            "about": dict(self.about),
            "methods": [self._method_json(method) for method in methods.values()],
            "figures": [_figures_json(each) for each in self.figures],
            "outputs_identical": not self.broken,
            "warnings": self.warnings,
        }

    def markdown(self) -> str:
        """Returns the report as Markdown: one table, with a row for each method and setting."""
        columns = [*FIGURES, *ABOUT[1:]]
        headings = ["task", "T", *(column.heading for column in columns)]
        lines = [
            ", ".join(f"{name} {value}" for name, value in self.about.items()),
            "",
            _markdown_row(headings),
            _markdown_row(["---", "---:", *("---:" if column.align == ">" else "---" for column in columns)]),
        ]
        for each in self.figures:
            cells = [column.cell(self._row(each)) for column in columns]
            lines.append(_markdown_row([each.setting.task, f"{each.setting.temperature:g}", *cells]))
        warnings = [f"- {warning}" for warning in self.warnings]
        return "\n".join([*lines, *(["", *warnings] if warnings else [])]) + "\n"

    def show(self) -> None:
        """Prints the figures, one table per setting, and a table of the methods' properties.

        The tables have fewer columns on a narrow terminal. No cell is ever cut.
        """
        width = _width()
        measured, known = ([e for e in some if width >= _WIDE or e.heading in FEW] for some in (FIGURES, ABOUT))
        for setting in dict.fromkeys(each.setting for each in self.figures):
            print(f"{_title(setting)}\n")
            _print(measured, [self._row(each) for each in self.figures if each.setting == setting])
            print()
        one_each: dict[str, Figures] = {}
        for each in self.figures:
            one_each.setdefault(each.method.name, replace(each, lossless=self._lossless(each.method)))
        _print(known, [self._row(each) for each in one_each.values()])

    def show_notes(self, write: Callable[[str], None]) -> None:
        """Writes each warning and note in lines that fit the terminal."""
        width = _width()
        if width < _WIDE:
            write(f"more columns (latencies, drafting, rollback): from a width of {_WIDE} up, or with --markdown")
        for warning in self.warnings:
            write(textwrap.fill(f"warning: {warning}", width, subsequent_indent="  ", break_long_words=False))

    def _row(self, figures: Figures) -> Row:
        return Row(figures, self._process_bytes(figures.method))

    def _lossless(self, method: Method) -> bool:
        return all(each.lossless for each in self.figures if each.method.name == method.name)

    def _process_bytes(self, method: Method) -> int | None:
        known = [self.memory[address] for address in method.services if address in self.memory]
        return sum(known) if known else None

    def _method_json(self, method: Method) -> dict[str, Any]:
        return {
            "name": method.name,
            "drafters": [
                {
                    "name": drafter.name,
                    "address": drafter.address,
                    "model": drafter.model.model_id if drafter.model else None,
                    "parameters": drafter.model.parameters if drafter.model else None,
                    "dtype": drafter.model.dtype if drafter.model else None,
                }
                for drafter in method.drafters
            ],
            "prediction": method.predicts,
            "acceptance": method.acceptance,
            "lossless": self._lossless(method),
            "needs": [asdict(needs) if needs else None for needs in method.needs],
            "memory": {"weights_bytes": method.weights_bytes, "process_bytes": self._process_bytes(method)},
        }


def _figures_json(figures: Figures) -> dict[str, Any]:
    values = asdict(figures)
    del values["method"], values["setting"], values["tokens_per_second"]["runs"], values["speed_up"]["runs"]
    return {"method": figures.method.name, **figures.setting._asdict(), **values}


def _without_drafts(figures: Figures) -> str:
    """Returns the note for a method that never drafted: its figures are plain decoding's, measured again."""
    told = f"{_subject(figures)}: no draft token was verified, so it decoded plainly"
    if abs(figures.speed_up.median - 1) <= LEAST_EFFECT:
        return told
    return f"{told}; its {figures.speed_up.median:.2f}x is measurement error, not an effect of the method"


def _width() -> int:
    """Returns the columns of a line: the terminal's, or COLUMNS; a file or a pipe has no limit."""
    endless = 0 if sys.stdout.isatty() else sys.maxsize
    return shutil.get_terminal_size((endless, 0)).columns or _NARROW


def _title(setting: Setting) -> str:
    return f"{setting.task}, T = {setting.temperature:g}"


def _subject(figures: Figures) -> str:
    return f"{_title(figures.setting)}, {figures.method.name}"


def _print(columns: Sequence[FigureColumn], rows: Sequence[Row]) -> None:
    headings = [column.heading.upper() for column in columns]
    cells = [[column.cell(row) for column in columns] for row in rows]
    print_table(headings, cells, "".join(column.align for column in columns))


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"
