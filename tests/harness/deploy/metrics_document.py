"""The metrics that docs/monitoring.md lists, to compare with those that are served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

from tests.harness.checkout import ROOT

_DOCUMENT = ROOT / "docs" / "monitoring.md"


class Row(NamedTuple):
    """One metric, as a row of the document."""

    name: str
    """The served name, including `_total` or `_info`."""
    kind: str
    labels: frozenset[str]
    meaning: str


def documented(heading: str, prefix: str = "draftwire:") -> list[Row]:
    """Returns the metrics with this prefix in the section under a heading, in the document's order."""
    section = _DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(draftwire:\w+)` \| (\w+) \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    return [
        Row(name, kind, frozenset(re.findall(r"`(\w+)`", labels)), text)
        for name, kind, labels, text in rows
        if name.startswith(prefix)
    ]


def served(families: Iterable[Metric]) -> list[Row]:
    """Returns the metrics of a service that has done some work; a metric without samples has no labels."""
    suffix = {"counter": "_total", "info": "_info"}
    return [
        Row(
            family.name + suffix.get(family.type, ""),
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels if label != "le"),
            family.documentation,
        )
        for family in families
    ]
