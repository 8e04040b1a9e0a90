"""The summary of a certificate on the terminal."""

from __future__ import annotations

from draftwire.cli.table import print_table
from draftwire_tools.check.certificate import Certificate
from draftwire_tools.check.tables import tables

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
    print(f"{'EQUAL' if certificate.passed else 'DIFFERENT'}: {certificate.verdict}")
