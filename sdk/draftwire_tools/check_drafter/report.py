"""The report of a check: a line per rule, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict

from draftwire.v1 import model_info_pb2
from draftwire.version import __version__
from draftwire_tools.check_drafter.findings import Finding, Outcome
from draftwire_tools.check_drafter.rule import RULES

_MARKS = {Outcome.PASSED: "pass", Outcome.FAILED: "FAIL", Outcome.SKIPPED: "skip"}


@dataclass(frozen=True, slots=True)
class DrafterReport:
    """The findings of a check."""

    address: str
    """The drafter's address."""
    hello: model_info_pb2.PeerInfo
    """The drafter's hello; empty if none came."""
    findings: Sequence[Finding]
    """One finding per rule."""

    def failed(self) -> list[Finding]:
        """Returns the findings of broken rules."""
        return [each for each in self.findings if each.outcome is Outcome.FAILED]

    def lines(self) -> Iterator[str]:
        """Yields a line per rule, with the cause where it failed or was skipped, and one with the numbers."""
        width = max(map(len, RULES))
        for each in self.findings:
            why = f": {_one_line(each.why)}" if each.why else ""
            yield f"{_MARKS[each.outcome]}  {each.rule:<{width}}  {RULES[each.rule]}{why}"
        counts = Counter(each.outcome for each in self.findings)
        numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome)
        yield f"{self.address}: {len(self.findings)} rules, {numbers}"

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {
            "address": self.address,
            "draftwire": __version__,
            "hello": MessageToDict(self.hello, preserving_proto_field_name=True),
            "passed": not self.failed(),
            "rules": [
                {"rule": each.rule, "text": RULES[each.rule], "outcome": str(each.outcome), "why": each.why}
                for each in self.findings
            ],
        }


def _one_line(text: str) -> str:
    """Returns a text, parts of which the drafter wrote, without line ends and what acts on a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)
