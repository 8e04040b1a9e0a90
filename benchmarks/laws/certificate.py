"""Checks models with `draftwire check`, and shows their certificates in docs/exactness.md.

    python -m benchmarks.laws.certificate [--pair bundled|smollm2|gemma3] [--minutes 10] [--requests 8]
        [--processor NAME]

`draftwire check` starts the services, compares outputs, and writes the certificate to docs/certificate.json and, as a
page of its own, to docs/certificate-report.html; those of the real models are next to them. The section of
docs/exactness.md is made from the former; --from-json makes it again without a check. The exit status is that of the
check. The files of the real models are fetched once (benchmarks/harness/real_files.py).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.real_files import GEMMA3
from benchmarks.harness.sections import with_section
from draftwire_tools.packaged_file import PackagedFile
from draftwire_tools.service import child_environment
from draftwire_tools.small_model import SMOLLM2
from tests.harness.checkout import ROOT

PAGE = Path("docs/exactness.md")
_CONDITIONS = ("processor", "cores", "commit", "torch", "transformers", "kernels")
_MODELS = "models"
"""The directory of the bundled models."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its drafters."""

    json: Path
    """The certificate."""
    html: Path
    """The certificate as a page."""
    section: str
    """Name of the section of the document."""
    options: tuple[str, ...]
    """The options of `draftwire check` that name the models and drafters."""
    files: tuple[PackagedFile, ...] = ()
    """Files to fetch, which the options name by their names."""


def _real(name: str, target: PackagedFile, draft: PackagedFile) -> Pair:
    """Returns the pair of a real target, drafted by lookup and by a model that translates."""
    options = ("--target", target.name, "--draft", draft.name, "--drafter", "local:ngram")
    json_file, html_file = Path(f"docs/certificate-{name}.json"), Path(f"docs/certificate-{name}.html")
    return Pair(json_file, html_file, f"certificate {name}", options, (target, draft))


_BUNDLED = "--target models/target --draft models/draft --draft models/draft-early --drafter local:ngram"
PAIRS = {
    "bundled": Pair(
        Path("docs/certificate.json"), Path("docs/certificate-report.html"), "certificate", tuple(_BUNDLED.split())
    ),
    "smollm2": _real("smollm2", SMOLLM2, GEMMA3),
    "gemma3": _real("gemma3", GEMMA3, SMOLLM2),
}
"""The pairs by name."""


def main() -> int:
    """Checks, and shows the certificate."""
    options = _parse()
    pair = PAIRS[options.pair]
    document = (ROOT / PAGE).read_text(encoding="utf-8")
    with_section(document, pair.section, "")  # a check takes minutes, so a missing section is reported first
    status = 0 if options.from_json else _check(pair, options)
    found = json.loads((ROOT / pair.json).read_text(encoding="utf-8"))
    (ROOT / PAGE).write_text(with_section(document, pair.section, section(found)), encoding="utf-8")
    return status


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=PAIRS, default="bundled", help="the models to check")
    parser.add_argument("--minutes", type=float, default=10, help="time for the comparison")
    parser.add_argument("--requests", type=int, default=8, help="requests per sampling and case; 8 have long contexts")
    parser.add_argument("--processor", help="the processor's name, where Linux reports none that says much")
    parser.add_argument("--from-json", action="store_true", help="show the certificate, without a check")
    return parser.parse_args()


def _check(pair: Pair, options: argparse.Namespace) -> int:
    asked = [*pair.options, "--requests", f"{options.requests}", "--minutes", f"{options.minutes:g}"]
    with tempfile.TemporaryDirectory(prefix="draftwire-certificate-") as directory:
        # The certificate names models and files as the command does, so that anybody can repeat it.
        scratch = Path(directory)
        (scratch / _MODELS).symlink_to(ROOT / _MODELS)
        for file in pair.files:
            (scratch / file.name).symlink_to(file.cached() or file.fetch())
        outputs = {"--json": ROOT / pair.json, "--html": ROOT / pair.html}
        named = [part for option, path in outputs.items() for part in (option, path.name)]
        run = [sys.executable, "-m", "draftwire.cli", "check", *asked, *named]
        status = subprocess.run(run, cwd=scratch, env=child_environment(), check=False).returncode
        if not (scratch / pair.json.name).exists():  # it has said why
            sys.exit(status)
        for path in outputs.values():
            shutil.copyfile(scratch / path.name, path)
    if options.processor:
        reported = json.loads((ROOT / pair.json).read_text(encoding="utf-8"))["about"]["processor"]
        for path in outputs.values():
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
