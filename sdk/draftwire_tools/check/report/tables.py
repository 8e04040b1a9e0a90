"""The tables of a certificate, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftwire.cli.results import print_table
from draftwire_tools.check.report.certificate import Certificate


class Table(NamedTuple):
    """A table of texts."""

    title: str
    """The table's title."""
    headings: tuple[str, ...]
    """Headings of its columns."""
    align: str
    """``<`` or ``>`` for each column."""
    rows: Sequence[tuple[str, ...]]
    """Cells of its rows."""
    bad: Sequence[bool]
    """Whether each row shows a difference."""


def tables(certificate: Certificate) -> list[Table]:
    """Returns the tables that have rows."""
    made = [_cases(certificate), _distributions(certificate), *_speed(certificate)]
    return [table for table in made if table.rows]


def _cases(certificate: Certificate) -> Table:
    rows, bad = [], []
    for case in certificate.cases:
        equal = f"{case.equal} of {case.compared}" if case.compared else "not run"
        drafted = f"{case.accepted_tokens} of {case.draft_tokens}" if case.draft_tokens else "-"
        rows.append((case.name, equal, drafted, "; ".join(filter(None, (case.events, case.not_run)))))
        bad.append(case.equal < case.compared)
    return Table("Outputs", ("case", "equal", "draft tokens accepted", "meanwhile"), "<>><", rows, bad)


def _distributions(certificate: Certificate) -> Table:
    rows, bad = [], []
    for test in certificate.distributions:
        told = "passed" if test.passed else f"failed (below {test.least:.1g})"
        if test.impossible:
            told = f"failed: {test.impossible} tokens that the target excludes"
        figures = (f"{test.tokens}", f"{test.seeds}", f"{test.statistic:.1f}", f"{test.degrees}", f"{test.p_value:.3g}")
        rows.append((test.name, *figures, told))
        bad.append(not test.passed)
    headings = ("drafting, sampling", "tokens", "seeds", "chi-square", "degrees", "p", "")
    return Table("Sampled tokens against the target's own distribution", headings, "<>>>>><", rows, bad)


def _speed(certificate: Certificate) -> list[Table]:
    speed = certificate.speed
    if speed is None:
        return []
    rows = [
        (
            each.setting.task,
            f"{each.setting.temperature:g}",
            each.method.name,
            f"{each.speed_up.median:.2f}",
            f"{each.tokens_per_second.median:.3g}",
            "-" if each.acceptance_rate is None else f"{each.acceptance_rate:.0%}",
            f"{each.acceptance_length:.2f}",
        )
        for each in speed.figures
    ]
    headings = ("prompts", "T", "drafters", "speed-up", "tokens/s", "accepted", "length")
    plain = speed.step_costs[0].seconds if speed.step_costs else 0.0
    costs = [(f"{each.rows}", f"{1000 * each.seconds:.3g}", f"{each.seconds / plain:.2f}") for each in speed.step_costs]
    chosen = f": the planner chose {speed.tree_size:.2f} draft tokens per sequence and step" if speed.tree_size else ""
    return [
        Table(f"Speed{chosen}", headings, "<><>>>>", rows, [False] * len(rows)),
        Table("c(n), the cost of a step", ("rows", "ms", "of one row"), ">>>", costs, [False] * len(costs)),
    ]


_MOST_DIFFERENCES = 5
"""Differences that are printed; files have all."""


def print_summary(certificate: Certificate) -> None:
    """Prints the tables, some differences, the notes, and the verdict at the end."""
    for table in tables(certificate):
        print(f"{table.title}\n")
        print_table([heading.upper() for heading in table.headings], table.rows, table.align)
        print()
    for each in certificate.differences[:_MOST_DIFFERENCES]:
        request = each.request
        print(f"differs: {each.case}; {request['kind']}, {request['sampling']}, seed {request['options']['seed']}")
        print(f"  {each.what} at {each.position}")
        print(f"  plain  {each.plain}")
        print(f"  other  {each.other}")
    if len(certificate.differences) > _MOST_DIFFERENCES:
        print(f"and {len(certificate.differences) - _MOST_DIFFERENCES} more: see --json or --html")
    for note in certificate.notes:
        print(f"note: {note}")
    print(f"{certificate.word.upper()}: {certificate.verdict}")
