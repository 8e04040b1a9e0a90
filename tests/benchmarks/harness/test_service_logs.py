"""Finding log lines that report an unhandled fault."""

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from benchmarks.harness.service_logs import unhandled
from draftwire_core.runtime.process.logs import configure_logs, get_logger


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Yields a log as a service would write it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logs("json", stream=stream)
    yield stream
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def found(tmp_path: Path, text: str) -> list[str]:
    log = tmp_path / "service.log"
    log.write_text(text)
    return unhandled(log)


def test_what_is_expected_is_passed_over(tmp_path: Path, written: io.StringIO) -> None:
    log = get_logger("verifier_service.test")
    log.info("listening", address="127.0.0.1:1")
    log.warning("drafter lost", reason="an error of the connection")
    assert found(tmp_path, written.getvalue()) == []


def test_errors_and_tracebacks_are_found(tmp_path: Path, written: io.StringIO) -> None:
    log = get_logger("verifier_service.test")
    log.error("background task failed")
    try:
        raise ValueError("no")
    except ValueError:
        log.warning("odd", exc_info=True)
    assert len(found(tmp_path, written.getvalue())) == 2


def test_what_python_says_of_its_own_accord_is_found(tmp_path: Path) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "sys:1: RuntimeWarning: coroutine 'f' was never awaited\n"
        '{"event": "Task exception was never retrieved", "level": "warning"}\n'
        "[]\n"
    )
    assert len(found(tmp_path, text)) == 3
