"""Tests that start processes say so, and so are not in the quick tier, where each of them would fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.checkout import ROOT
from tests.harness.suite.durations import Durations
from tests.harness.suite.tiers import QUICK_SECONDS

STARTERS = frozenset(f"subprocess.{name}" for name in ("run", "Popen", "check_call", "check_output"))
MARKS = ("mark.processes", "mark.slow", "mark.skipif")
RECORDED = Durations.recorded()
NAMES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
FILES = [
    name
    for name in NAMES
    if RECORDED.seconds(name, "quick") <= QUICK_SECONDS and "subprocess." in (ROOT / name).read_text(encoding="utf-8")
]
"""Files that may be in the quick tier and name the module."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def unmarked(text: str) -> Iterator[str]:
    """Finds tests that start a process, by themselves or by a helper or fixture of their file, and have no mark."""
    tree = ast.parse(text)
    functions = [each for each in ast.walk(tree) if isinstance(each, Function)]
    helpers = {each.name: _used(each) for each in functions if not each.name.startswith("test_")}
    starting = set(STARTERS)
    while more := {name for name, used in helpers.items() if used & starting} - starting:
        starting |= more
    if any(
        isinstance(each, ast.Assign) and "pytestmark" in ast.unparse(each) and _marked([each]) for each in tree.body
    ):
        return
    for each in tree.body:
        if not (isinstance(each, ast.ClassDef) and _marked(each.decorator_list)):
            for test in each.body if isinstance(each, ast.ClassDef) else [each]:
                if isinstance(test, Function) and test.name.startswith("test_") and not _marked(test.decorator_list):
                    yield from [test.name] if _used(test) & starting else []


def _marked(nodes: list[ast.Assign] | list[ast.expr]) -> bool:
    return any(mark in ast.unparse(node) for node in nodes for mark in MARKS)


def _used(function: Function) -> set[str]:
    """Returns the names that a function calls, and those of its parameters, which may be fixtures."""
    called = {ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)}
    return called | {each.arg for each in function.args.args}


@pytest.mark.parametrize("name", FILES)
def test_tests_that_start_processes_are_marked(name: str) -> None:
    assert list(unmarked(Path(ROOT, name).read_text(encoding="utf-8"))) == []


def test_a_test_without_the_mark_is_found() -> None:
    helpers = "def run():\n    subprocess.run([])\n\n@pytest.fixture\ndef made():\n    run()\n\n"
    tests = (
        "def test_a(made):\n    pass\n\ndef test_b():\n    pass\n\nclass TestC:\n    def test_c(self):\n        run()\n"
    )
    assert list(unmarked(helpers + tests)) == ["test_a", "test_c"]
    assert list(unmarked(helpers + tests.replace("class", "@pytest.mark.processes\nclass"))) == ["test_a"]
    assert list(unmarked("pytestmark = pytest.mark.slow\n" + helpers + tests)) == []
