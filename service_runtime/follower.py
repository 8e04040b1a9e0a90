"""From start to end of a process that serves nobody: a rank beside the one that serves."""

import logging
import os
import signal
from collections.abc import Callable

import structlog

from service_runtime.logs import configure_logs, get_logger
from service_runtime.rank_settings import RankSettings
from service_runtime.startup_error import StartupError

log = get_logger(__name__)


def run_follower(follow: Callable[[], None], settings: RankSettings) -> int:
    """Runs `follow` until it returns, and gives the process's exit status: 0, or 1 after a fault.

    Signals that ask a service to end are for rank 0, which tells the others when its requests have ended; without it
    `follow` raises. After a fault the process ends here: what other ranks owe it would hold it up.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    configure_logs(settings.log_format, settings.log_level)
    structlog.contextvars.bind_contextvars(rank=settings.rank)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in run_service
    try:
        follow()
    except StartupError as error:
        log.info("rank ends", reason=str(error))  # rank 0 says what is wrong
    except Exception:
        log.exception("rank failed")
    else:
        return 0
    logging.shutdown()
    os._exit(1)
