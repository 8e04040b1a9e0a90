"""Checks the bundled models with `draftwire check`, and shows the certificate in docs/exactness.md.

    python -m benchmarks.laws.certificate [--minutes 10] [--requests 8] [--processor NAME]

`draftwire check` starts the services, compares outputs, and writes the certificate to docs/certificate.json and, as a
page of its own, to docs/certificate-report.html. The section of docs/exactness.md is made from the former; --from-json
makes it again without a check. The exit status is that of the check.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.sections import with_section
from tests.harness.checkout import ROOT

JSON, HTML = Path("docs/certificate.json"), Path("docs/certificate-report.html")
PAGE = Path("docs/exactness.md")
_CHECKED = "--target models/target --draft models/draft --draft models/draft-early --drafter local:ngram"
_CONDITIONS = ("processor", "cores", "commit", "torch", "transformers", "kernels")


def main() -> int:
    """Checks, and shows the certificate."""
    options = _parse()
    status = 0 if options.from_json else _check(options)
    found = json.loads((ROOT / JSON).read_text(encoding="utf-8"))
    document = (ROOT / PAGE).read_text(encoding="utf-8")
    (ROOT / PAGE).write_text(with_section(document, "certificate", section(found)), encoding="utf-8")
    return status


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="time for the comparison")
    parser.add_argument("--requests", type=int, default=8, help="requests per sampling and case; 8 have long contexts")
    parser.add_argument("--processor", help="the processor's name, where Linux reports none that says much")
    parser.add_argument("--from-json", action="store_true", help=f"show {JSON}, without a check")
    return parser.parse_args()


def _check(options: argparse.Namespace) -> int:
    told = [*_CHECKED.split(), "--requests", f"{options.requests}", "--minutes", f"{options.minutes:g}"]
    files = ["--json", str(JSON), "--html", str(HTML)]
    run = [sys.executable, "-m", "draftwire.cli", "check", *told, *files]
    status = subprocess.run(run, cwd=ROOT, check=False).returncode
    if options.processor:
        reported = json.loads((ROOT / JSON).read_text(encoding="utf-8"))["about"]["processor"]
        for path in (ROOT / JSON, ROOT / HTML):
            path.write_text(path.read_text(encoding="utf-8").replace(reported, options.processor), encoding="utf-8")
    return status


def section(found: Mapping[str, Any]) -> str:
    """Returns the section of the document. found: the certificate as JSON."""
    word = "Equal" if found["passed"] else "Different"
    about = ", ".join(f"{name} {found['about'][name]}" for name in _CONDITIONS)
    tests = ("sampled tokens against the target's own distribution", "chi-square", "degrees", "p", "")
    parts = [
        f"**{word}: {found['verdict']}.**",
        *([""] if found["notes"] else []),
        *(f"- {note}" for note in found["notes"]),
        *_table(("case", "equal", "draft tokens accepted", "meanwhile"), map(_case, found["cases"])),
        *_table(tests, map(_test, found["distributions"])),
        f"\n{about[:1].upper()}{about[1:]}.",
    ]
    return "\n".join(parts)


def _case(case: Mapping[str, Any]) -> Sequence[str]:
    drafted, accepted = case["draft_tokens"], case["accepted_tokens"]
    equal = f"{case['equal']} of {case['compared']}" if case["compared"] else "not run"
    events = case["events"].partition(": ")[0]  # the numerics behind it are in the certificate
    told = "; ".join(filter(None, (events, case["not_run"])))
    return case["case"], equal, f"{accepted} of {drafted}" if drafted else "", told


def _test(test: Mapping[str, Any]) -> Sequence[str]:
    told = "passed" if test["passed"] else "failed"
    figures = f"{test['statistic']:.1f}", f"{test['degrees']}", f"{test['p_value']:.3g}"
    return test["name"], *figures, told


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from ("", f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}")
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


if __name__ == "__main__":
    sys.exit(main())
