"""The drafter process, from the command line to the exit status."""

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module

from drafter_service.settings import DrafterSettings
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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the service until a signal ends it. Returns the exit status."""
    settings, device = load_rank_settings(DrafterSettings, device_here, argv)
    if settings.rank:
        return run_follower(lambda loaded: _follow(settings, loaded), settings)
    return run_service(
        lambda shutdown: _run(settings, shutdown), settings, device=device.about, unused_gpu=device.unused
    )


def _follow(settings: DrafterSettings, loaded: Callable[[], None]) -> None:
    with without_unneeded_packages(settings.device):
        from drafter_service.models.loaded_model import follow
    release_code_pages()
    follow(settings, loaded)


async def _run(settings: DrafterSettings, shutdown: Shutdown) -> None:
    share_interpreter(settings.device)
    server = ServiceServer(settings)
    # Importing torch takes seconds, so invalid flags, ports in use and wrong paths are reported before that.
    with startup_errors(ModelLoadError):
        if settings.model:
            check_source(settings.model)
        if settings.target_tokenizer:
            check_source(settings.target_tokenizer, model=False)
    await server.open()
    try:
        with without_unneeded_packages(settings.device):
            await asyncio.to_thread(import_module, "drafter_service.service")
        from drafter_service.service import run_drafter

        release_code_pages()
        await run_drafter(settings, server, shutdown)
    finally:
        await server.stop(0)  # no effect after a graceful end
