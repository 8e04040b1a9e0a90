"""The log of a process: structlog, one line per event on standard error."""

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

# Local variables hold prompts, so they must never be logged, whatever structlog's defaults are.
_TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
_CONTEXT: list[Processor] = [structlog.contextvars.merge_contextvars]
_LOGGER: list[Processor] = [structlog.stdlib.add_logger_name]
_MOMENT: list[Processor] = [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]


class _GarbageOfPeers(logging.Filter):
    """Shortens gRPC's log records about undecodable bytes from a peer, and about calls that ended before their answer
    was sent, to one line.

    gRPC logs both as errors of its own, with a traceback. The call ends with an error, which is handled and logged
    elsewhere. The last of the texts is logged for a method name that is not UTF-8; exceptions of handlers never reach
    gRPC.
    """

    _TOO_LATE = "ExecuteBatchError raised in core"
    """The beginning of gRPC's log record of an answer that was sent as the call's deadline passed."""
    _TEXTS = ("Exception deserializing message", "Invalid encoding on", "Unexpected [UnicodeDecodeError] raised")

    def filter(self, record: logging.LogRecord) -> bool:
        """Turns such a record into a one-line warning, or a note; passes every record."""
        text = record.getMessage()
        if text.startswith(self._TOO_LATE):
            record.msg, record.args = "the call ended before its answer was sent", ()
            record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        if text.startswith(self._TEXTS):
            error = record.exc_info[1] if record.exc_info else None
            record.msg, record.args = (f"{text} {error}" if error else text), ()
            record.exc_info, record.levelno, record.levelname = None, logging.WARNING, "WARNING"
        return True


def _without_message(logger: object, method: str, event: EventDict) -> EventDict:
    """Removes duplicates of a standard library record's text: another handler's, and uvicorn's with colour codes."""
    event.pop("message", None)
    event.pop("color_message", None)
    return event


def _name_among_fields(logger: object, method: str, event: EventDict) -> EventDict:
    """Moves the logger's name behind the fields, so that a line begins `listening address=...`."""
    event["module"] = event.pop("logger", None)
    return event


def configure_logs(
    log_format: Literal["console", "json"] = "console",
    log_level: str = "info",
    stream: TextIO | None = None,
    names: Sequence[str] = ("",),
    *,
    with_logger: bool = True,
) -> None:
    """Sends structlog's and the standard library's records through one renderer; called once, at the start of a
    process.

    `stream` is standard error by default. `names`: the loggers to configure; the root logger by default, fewer in a
    program with a log of its own. `with_logger`: adds the name of its logger to each line. Raises ValueError when the
    level is unknown.
    """
    output = sys.stderr if stream is None else stream
    shared = [*_CONTEXT, *(_LOGGER if with_logger else ()), *_MOMENT]
    renderers: list[Processor]
    if log_format == "json":
        renderers = [_TRACEBACKS, structlog.processors.JSONRenderer()]
    else:
        # The first argument, the width of the event's column, has a different name in each structlog version.
        plain = structlog.dev.plain_traceback
        renderers = [
            *((_name_among_fields,) if with_logger else ()),
            structlog.dev.ConsoleRenderer(0, colors=output.isatty(), exception_formatter=plain),
        ]
    handler = logging.StreamHandler(output)
    handler.addFilter(_GarbageOfPeers())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(), _without_message],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(log_level.upper())
        logger.propagate = False
    # Below this level gRPC logs a server that is being freed and puts it among the record's arguments. Anything that
    # keeps the record frees the server twice, and the process crashes.
    logging.getLogger("grpc._cython.cygrpc").setLevel(logging.INFO)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # loggers are created at module level, before the settings are known
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Returns the logger of a module: `log = get_logger(__name__)`, then `log.info("event", key=value)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def bind_call_log(**fields: Any) -> None:
    """Adds fields to every later line of the current call, including the last, "call finished". They end with the
    call's task."""
    structlog.contextvars.bind_contextvars(**fields)


def log_context(**fields: Any) -> AbstractContextManager[None]:
    """Adds fields, such as request_id or sequence_id, to every line logged inside the `with`, by this task and the
    tasks it starts there."""
    return structlog.contextvars.bound_contextvars(**fields)
