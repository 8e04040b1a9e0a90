"""The life cycle of a process that serves no requests: a rank next to the one that serves."""

import logging
import os
import signal
from collections.abc import Callable

import structlog

from draftwire_core.runtime.process.logs import configure_logs, get_logger
from draftwire_core.runtime.process.rank_settings import RankSettings
from draftwire_core.runtime.process.startup_error import StartupError

log = get_logger(__name__)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_follower(follow: Callable[[Callable[[], None]], None], settings: RankSettings) -> int:
    """Runs `follow` until it returns, and returns the process's exit status: 0, or 1 after a fault.

    `follow` calls its argument once its part of the model is loaded. Until then SIGTERM and SIGINT kill the process.
    Afterwards it ignores them: rank 0 handles them, and dismisses the other ranks when its requests have ended. If rank
    0 is lost, `follow` raises. After a fault the process exits here, without waiting for other ranks.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    configure_logs(settings.log_format, settings.log_level)
    structlog.contextvars.bind_contextvars(rank=settings.rank)
    log.info("starting")  # rank 0 logs the settings
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in run_service
    try:
        follow(_leave_signals_to_rank_0)
    except StartupError as error:
        log.info("rank ended", reason=str(error))  # rank 0 logs the cause
    except Exception:
        log.exception("rank failed")
    else:
        return 0
    logging.shutdown()
    os._exit(1)


def _leave_signals_to_rank_0() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
