"""The processes that hold the model together, where it is split."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drafter_service.loaded_model import load_part, set_threads
from drafter_service.settings import DrafterSettings
from service_runtime.startup_error import StartupError
from speculative_engine.packed_model import ModelLoadError, check_model_splits
from speculative_engine.rank_group import RankGroup, RankLostError
from speculative_engine.rank_processes import RankProcesses
from speculative_engine.self_test import run_self_test
from speculative_engine.split_check import SplitError


@asynccontextmanager
async def running_ranks(settings: DrafterSettings) -> AsyncIterator[RankGroup | None]:
    """This process's place among the ranks, which all end with the `async with`; None where the model is whole.

    Raises StartupError.
    """
    if settings.tensor_parallel == 1:
        yield None
        return
    processes = await asyncio.to_thread(_open, settings)
    try:
        yield processes.ranks
    finally:
        await asyncio.to_thread(processes.close)


def follow(settings: DrafterSettings) -> None:
    """What a rank beside rank 0 does: loads its part of the model, and runs the passes that rank 0 announces.

    Raises StartupError.
    """
    processes = _open(settings)
    try:
        set_threads(settings)
        model = load_part(settings, processes.ranks)
        run_self_test(model)
        processes.ranks.follow(model)
    except (ModelLoadError, RankLostError) as error:
        raise StartupError(str(error)) from error
    processes.close()


def _open(settings: DrafterSettings) -> RankProcesses:
    try:
        # Before there is more than one process to tell of it.
        check_model_splits(settings.model, settings.tensor_parallel, trust_remote_code=settings.trust_remote_code)
        return RankProcesses.open(
            settings.tensor_parallel,
            device=settings.device,
            timeout_seconds=settings.tensor_parallel_timeout_seconds,
        )
    except (ModelLoadError, SplitError, RankLostError) as error:
        raise StartupError(str(error)) from error
