"""The tables of a certificate, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftwire_tools.check.certificate import Certificate


class Table(NamedTuple):
    """A table of texts."""

    title: str
    """Its title."""
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
    title = f"Speed: the planner chose {speed.tree_size:.2f} draft tokens per sequence and step"
    return [
        Table(title, headings, "<><>>>>", rows, [False] * len(rows)),
        Table("c(n), the cost of a step", ("rows", "ms", "of one row"), ">>>", costs, [False] * len(costs)),
    ]
