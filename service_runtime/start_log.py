"""The first lines of a service's log."""

import os

from draftwire._program.variables import unknown_variables
from draftwire.version import __version__
from service_runtime.logs import get_logger
from service_runtime.settings import ServiceSettings

log = get_logger(__name__)


def log_start(settings: ServiceSettings) -> None:
    """Logs which build starts with which settings, before anything takes its time, and names variables that nothing
    reads."""
    log.info("starting", build=f"draftwire {__version__}", settings=settings.given)
    for name, meant in unknown_variables(os.environ):
        log.warning("unknown variable; it has no effect", variable=name, did_you_mean=meant)
