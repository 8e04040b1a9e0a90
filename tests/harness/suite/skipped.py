"""The list of skipped tests at the end of a run: first the programs that are not installed, and how to install them."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

PACKAGES = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "chromium": "chromium",
    "gcc": "gcc",
    "git": "git",
    "make": "make",
    "nginx": "nginx",
    "node": "nodejs",
    "npm": "npm",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "qemu-aarch64": "qemu-user",
    "tmux": "tmux",
}
"""Debian's packages of the programs that some tests need."""
_BEGIN = "not installed: "


def needs(*programs: str) -> pytest.MarkDecorator:
    """Marks tests that are skipped if a program is not installed."""
    missing = [each for each in programs if shutil.which(each) is None]
    return pytest.mark.skipif(bool(missing), reason=_BEGIN + ", ".join(missing))


def skip_without(*programs: str) -> None:
    """Skips a test or fixture if a program is not installed."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        pytest.skip(_BEGIN + ", ".join(missing))


class Skipped:
    """The plugin that lists them."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the list."""
        programs: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for report in terminalreporter.stats.get("skipped", []):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            if reason.startswith(_BEGIN):
                programs.update(reason.removeprefix(_BEGIN).split(", "))
            else:
                reasons[reason] += 1
        if not programs and not reasons:
            return
        terminalreporter.section("skipped")
        for program, count in sorted(programs.items()):
            terminalreporter.write_line(f"{count:6}  {program} is not installed")
        if programs:
            packages = sorted({name for program in programs for name in PACKAGES.get(program, program).split()})
            terminalreporter.write_line(f"        to run them: apt-get install {' '.join(packages)}")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:6}  {reason}")
