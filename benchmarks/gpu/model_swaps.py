"""Replaces a drafter's model again and again, and then kills the drafter, while requests run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from benchmarks.gpu.figure_log import FigureLog
from benchmarks.harness.arrangements import run_greedily
from draftwire import AsyncClient
from tests.harness.services.service_process import ServiceProcess

_POLL_SECONDS = 0.05


class ModelSwaps:
    """The changes of one drafter's model, under requests whose outputs are known."""

    def __init__(
        self, client: AsyncClient, drafter: ServiceProcess, prompts: Sequence[Sequence[int]], tokens: int, device: str
    ):
        self._client = client
        self._drafter = drafter
        self._prompts = prompts
        self._tokens = tokens
        self._device = torch.device(device)
        self._outputs: list[tuple[int, tuple[int, ...]]] = []
        self._answered = asyncio.Semaphore(0)
        self._ended = False

    async def run(self, expected: Sequence[Sequence[int]], models: Sequence[Path], swaps: int, log: FigureLog) -> None:
        """Loads the models by turns, and adds figures to the log. expected: the plain outputs of the prompts."""
        requests = asyncio.create_task(self._ask_again_and_again())
        try:
            log.add({"memory before swaps, MiB": self._memory()})
            for number in range(swaps):
                await self._load(models[number % len(models)])
                log.add({f"memory after {number + 1} swaps, MiB": self._memory()})
            log.add({"outputs during swaps that are the plain ones": self._same(expected)})
            self._drafter.kill()
            await self._more(2)  # one that was running, and one after it
            log.add({"outputs, the drafter's death included, that are the plain ones": self._same(expected)})
        finally:
            requests.cancel()
            with suppress(asyncio.CancelledError):
                await requests

    async def _load(self, model: Path) -> None:
        """Returns when a model is served."""
        address = self._drafter.address
        load = await self._client.drafters.load_model(address, str(model))
        while load.state == "loading":
            await asyncio.sleep(_POLL_SECONDS)
            state = await self._client.drafters.load_state(address)
            assert state.last_load is not None, "the drafter has forgotten the load"
            load = state.last_load
        assert load.state != "failed", load.error

    async def _ask_again_and_again(self) -> None:
        try:
            while True:
                for number, prompt in enumerate(self._prompts):
                    batch = await run_greedily(self._client, prompt, self._tokens, drafted=True)
                    self._outputs.append((number, batch.token_ids[0]))
                    self._answered.release()
        finally:
            self._ended = True
            self._answered.release()

    async def _more(self, count: int) -> None:
        """Waits for so many outputs from now on, or until no more are asked for."""
        while not self._answered.locked():
            await self._answered.acquire()
        for _ in range(count):
            if not self._ended:
                await self._answered.acquire()

    def _same(self, expected: Sequence[Sequence[int]]) -> str:
        same = sum(tokens == tuple(expected[number]) for number, tokens in self._outputs)
        return f"{same} of {len(self._outputs)}"

    def _memory(self) -> int:
        """MiB in use on the GPU, by all processes; on a CPU those of the drafter's process."""
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            return (total - free) >> 20
        pages = int(Path(f"/proc/{self._drafter.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20
