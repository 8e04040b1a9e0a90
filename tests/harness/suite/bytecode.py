"""Bytecode of the checkout, made once before workers start, each of which would otherwise make all of it.

Rewriting the asserts of all tests takes half of the processor time of collecting them.
"""

from __future__ import annotations

import compileall
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.harness.checkout import ROOT

_PACKAGES = ("benchmarks", "drafter_service", "draftwire_core", "gateway_service", "scripts", "sdk", "verifier_service")
"""Where the modules are that tests import, next to `tests/harness`. Other projects' are compiled when installed."""


def make_bytecode(config: pytest.Config, chosen: Callable[[Path], bool]) -> None:
    """Compiles the checkout's modules, and rewrites its tests as pytest does at their import, unless that has been done
    before. Does nothing if bytecode is not kept.

    chosen: whether a test file is in the tier of the run.
    """
    if sys.dont_write_bytecode:
        return
    tests = [*ROOT.glob("tests/**/conftest.py"), *filter(chosen, ROOT.glob("tests/**/test_*.py"))]
    missing = [path for path in tests if rewrite._read_pyc(path, _place(path)) is None]
    modules = [path for name in (*_PACKAGES, "tests/harness") for path in (ROOT / name).rglob("*.py")]
    fork, count = multiprocessing.get_context("fork"), os.cpu_count() or 1
    shares = [
        fork.Process(target=_make, args=(config, missing[place::count], modules[place::count]))
        for place in range(count)
    ]
    for share in shares:
        share.start()
    for share in shares:
        share.join()


def _place(path: Path) -> Path:
    """Where pytest looks for a rewritten file."""
    return rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)


def _make(config: pytest.Config, tests: Sequence[Path], modules: Sequence[Path]) -> None:
    for path in modules:
        compileall.compile_file(path, quiet=2)
    for path in tests:
        with suppress(SyntaxError):  # which pytest reports at the import
            stat, code = rewrite._rewrite_test(path, config)
            _place(path).parent.mkdir(exist_ok=True)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, _place(path))
