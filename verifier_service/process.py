"""The verifier's process, from the command line to the exit status."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError, check_source
from draftwire_core.engine.device.choices import device_here
from draftwire_core.runtime.process.follower import run_follower
from draftwire_core.runtime.process.lifecycle import Shutdown, run_service
from draftwire_core.runtime.process.memory import release_code_pages
from draftwire_core.runtime.process.program import without_unneeded_packages
from draftwire_core.runtime.process.rank_settings import load_rank_settings
from draftwire_core.runtime.process.startup_error import startup_errors
from draftwire_core.runtime.process.threads import share_interpreter
from draftwire_core.runtime.rpc.server import ServiceServer
from verifier_service.settings import VerifierSettings, with_engine_arguments

_SERVICES = {"draftwire": "verifier_service.service", "vllm": "verifier_service.vllm.service"}
"""The module that runs the service, by engine."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service until a signal ends it; returns the exit status."""
    argv = with_engine_arguments(sys.argv[1:] if argv is None else argv)
    settings, device = load_rank_settings(VerifierSettings, device_here, argv)
    if settings.preflight:
        from verifier_service.preflight import preflight  # with torch

        return preflight(settings, device)
    if settings.rank:
        return run_follower(lambda loaded: _follow(settings, loaded), settings)
    return run_service(
        lambda shutdown: _run(settings, shutdown), settings, device=device.about, unused_gpu=device.unused
    )


def _follow(settings: VerifierSettings, loaded: Callable[[], None]) -> None:
    with without_unneeded_packages(settings.device):
        from verifier_service.target import follow
    release_code_pages()
    follow(settings, loaded)


async def _run(settings: VerifierSettings, shutdown: Shutdown) -> None:
    own_engine = settings.engine == "draftwire"
    if own_engine:
        share_interpreter(settings.device)
    server = ServiceServer(settings)
    # Importing torch takes seconds; a wrong flag, a port in use or a wrong path is reported before that.
    with startup_errors(ModelLoadError):
        check_source(settings.model)
    await server.open()
    try:
        with without_unneeded_packages(settings.device) if own_engine else nullcontext():
            service = await asyncio.to_thread(import_module, _SERVICES[settings.engine])
        release_code_pages()
        await service.run_verifier(settings, server, shutdown)
    finally:
        await server.stop(0)  # no effect after a graceful end
