"""Calls a running drafter's LoadModel."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftwire.v1 import drafter_service_pb2
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.waiting import PATIENCE

PROMPT = [5, 9, 14, 23, 42, 7]
LOADING = drafter_service_pb2.MODEL_LOAD_STATE_LOADING
SERVING = drafter_service_pb2.MODEL_LOAD_STATE_SERVING


async def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def load(drafter: InProcessDrafter, model: Path | str, request_id: str = "") -> Any:
    """Calls LoadModel as a client does."""
    request = drafter_service_pb2.LoadModelRequest(model=str(model), request_id=request_id)
    return (await drafter.servicer.LoadModel(request, None)).load  # type: ignore[arg-type]


async def info(drafter: InProcessDrafter) -> Any:
    request = drafter_service_pb2.DrafterServiceGetModelInfoRequest()
    return await drafter.servicer.GetModelInfo(request, None)  # type: ignore[arg-type]


async def loaded(drafter: InProcessDrafter, model: Path | str, request_id: str = "") -> Any:
    """Calls LoadModel and waits until the load has ended."""
    await load(drafter, model, request_id)
    await eventually(lambda: drafter.changes.last_load.state != LOADING)  # type: ignore[union-attr]
    return (await info(drafter)).last_load
