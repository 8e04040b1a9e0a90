"""The committed synchronous clients match the asyncio ones, and the generator refuses unknown constructs."""

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from draftwire import AsyncClient, AsyncDrafters, Client, Drafters
from draftwire._calls.async_transport import AsyncTransport
from draftwire._calls.transport import Transport
from draftwire._calls.upkeep import AsyncUpkeep, Upkeep
from draftwire.edge import AsyncEdgeClient, EdgeClient
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "generate_sync.py"
SOURCE = "sdk/draftwire/_async/drafters.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_sync", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.processes
class TestAllFiles:
    def test_the_generated_files_are_up_to_date(self) -> None:
        result = subprocess.run(
            [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_change_of_the_source_changes_what_is_generated(generator: ModuleType) -> None:
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    changed = text.replace("oldest first", "newest first")
    assert changed != text
    committed = (ROOT / generator.FILES[SOURCE]).read_text(encoding="utf-8")
    assert generator.generate(SOURCE, changed) == committed.replace("oldest first", "newest first")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("import asyncio", "import asyncio"),
        ("# an asynchronous remark", "an asynchronous remark"),
        ('TEXT = "awaited"', "awaited"),
    ],
)
def test_what_would_stay_asynchronous_is_refused(generator: ModuleType, line: str, named: str) -> None:
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    with pytest.raises(generator.Untranslated, match=named):
        generator.generate(SOURCE, f"{text}\n{line}\n")


def test_a_phrase_that_is_gone_is_refused(generator: ModuleType) -> None:
    text = (ROOT / SOURCE).read_text(encoding="utf-8")
    for phrase in generator.PHRASES[SOURCE]:
        with pytest.raises(generator.Untranslated, match="correct PHRASES"):
            generator.generate(SOURCE, text.replace(phrase, ""))


@pytest.mark.parametrize(
    ("asynchronous", "synchronous"),
    [
        (AsyncClient, Client),
        (AsyncDrafters, Drafters),
        (AsyncTransport, Transport),
        (AsyncUpkeep, Upkeep),
        (AsyncEdgeClient, EdgeClient),
    ],
    ids=lambda each: each.__name__,
)
def test_both_have_the_same_methods(asynchronous: type, synchronous: type) -> None:
    def parameters(of: type) -> dict[str, list[str]]:
        found = inspect.getmembers(of, inspect.isfunction)
        return {name: list(inspect.signature(f).parameters) for name, f in found if not name.startswith("_")}

    assert parameters(asynchronous) == parameters(synchronous)
    assert not any(inspect.iscoroutinefunction(f) for _, f in inspect.getmembers(synchronous, inspect.isfunction))
