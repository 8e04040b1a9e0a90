"""The metrics in docs/metrics.md, to compare with those served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from prometheus_client.metrics_core import Metric

_DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


class Row(NamedTuple):
    """A metric as the document has it."""

    name: str
    """As it is served, `_total` and `_info` included."""
    kind: str
    labels: frozenset[str]
    meaning: str


def documented(heading: str) -> list[Row]:
    """The metrics in the document's section of a heading, in its order."""
    section = _DOCUMENT.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(draftwire:\w+)` \| (\w+) \| (.*?) \| (.*) \|$", section, re.MULTILINE)
    return [Row(name, kind, frozenset(re.findall(r"`(\w+)`", labels)), text) for name, kind, labels, text in rows]


def served(families: Iterable[Metric]) -> list[Row]:
    """The metrics of a service that has been at work; those without samples have no labels."""
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
