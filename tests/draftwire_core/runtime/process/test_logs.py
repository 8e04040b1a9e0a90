import gc
import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import grpc
import pytest
import structlog

from draftwire_core.runtime.process.logs import configure_logs, get_logger, log_context
from tests.harness.waiting import PATIENCE


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def records(output: io.StringIO, *loggers: str) -> list[dict[str, Any]]:
    """Returns the records of these loggers. Objects left behind by earlier tests may log in this process, too."""
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    return [record for record in lines if record["logger"].startswith(loggers)]


def test_json_lines_from_both_kinds_of_loggers() -> None:
    output = io.StringIO()
    configure_logs("json", "info", output)
    with log_context(request_id="r1", sequence_id=7):
        get_logger("a").info("began", tokens=3)
        logging.getLogger("library").warning("watch %s", "out")
    get_logger("a").debug("hidden")
    ours, theirs = records(output, "a", "library")
    assert (ours["event"], ours["tokens"], ours["level"], ours["logger"]) == ("began", 3, "info", "a")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("watch out", "warning", "library")
    for record in (ours, theirs):
        assert (record["request_id"], record["sequence_id"]) == ("r1", 7)
        moment = datetime.fromisoformat(record["timestamp"])
        assert moment.utcoffset() is not None
        assert record["timestamp"].endswith("Z")


def test_a_record_that_another_handler_has_formatted_has_its_text_once() -> None:
    output, raw = io.StringIO(), io.StringIO()
    configure_logs("json", "info", output)
    library = logging.getLogger("library")
    library.addHandler(own := logging.StreamHandler(raw))
    try:
        library.warning("watch out", extra={"place": "here"})
    finally:
        library.removeHandler(own)
    [record] = records(output, "library")
    assert raw.getvalue() == "watch out\n"
    assert (record["event"], record["place"]) == ("watch out", "here")
    assert "message" not in record


def test_context_ends_with_its_block() -> None:
    output = io.StringIO()
    configure_logs("json", "info", output)
    with log_context(request_id="r1"):
        pass
    get_logger("a").info("after")
    assert "request_id" not in records(output, "a")[0]


def test_a_traceback_is_part_of_the_json_record() -> None:
    output = io.StringIO()
    configure_logs("json", "info", output)
    prompt = "private text"
    try:
        raise KeyError(len(prompt))
    except KeyError:
        get_logger("a").exception("failed")
    [record] = records(output, "a")
    assert record["exception"][0]["exc_type"] == "KeyError"
    assert "private text" not in json.dumps(record["exception"][0].get("frames", []))


def test_console_lines_are_plain_and_keep_local_variables_to_themselves() -> None:
    output = io.StringIO()
    configure_logs("console", "info", output)
    get_logger("a").info("listening", address="127.0.0.1:5")
    secret = "".join(["pri", "vate"])
    try:
        raise KeyError(len(secret))
    except KeyError:
        get_logger("a").exception("failed")
    text = output.getvalue()
    assert "listening address=127.0.0.1:5" in text
    assert "\x1b" not in text
    assert "KeyError: 7" in text
    assert "private" not in text


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure_logs("json", "loud", io.StringIO())


def test_bytes_that_grpc_cannot_read_are_a_line_and_no_failure_of_ours() -> None:
    output = io.StringIO()
    configure_logs("json", "info", output)
    for message in ("Exception deserializing message!", "Exception calling application"):
        try:
            raise ValueError("wire type 7")
        except ValueError:
            logging.getLogger("grpc._common").exception(message)
    garbage, fault = records(output, "grpc._common")
    assert (garbage["level"], garbage["event"]) == ("warning", "Exception deserializing message! wire type 7")
    assert "exception" not in garbage
    assert fault["level"] == "error" and fault["exception"]


async def test_a_method_whose_name_is_no_text_is_a_line(serve_probe: Any, make_probe: Any) -> None:
    """Flipped bits produce such a name. gRPC fails before it calls any handler or interceptor."""
    output = io.StringIO()
    configure_logs("json", "info", output)
    async with serve_probe(make_probe()) as running:
        call = running.channel.unary_unary(b"/draftwire.test.Probe/Ech\xe1")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"", timeout=PATIENCE)
    (garbage,) = [record for record in records(output, "grpc") if "UnicodeDecodeError" in record["event"]]
    assert garbage["level"] == "warning" and "exception" not in garbage


async def test_a_server_that_is_freed_is_not_logged_by_grpc() -> None:
    kept: list[logging.LogRecord] = []
    configure_logs("json", "debug", io.StringIO())
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    del server
    gc.collect()
    assert [record.name for record in kept if record.name.startswith("grpc._cython")] == []
