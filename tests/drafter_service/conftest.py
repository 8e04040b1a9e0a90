"""A drafter without sockets over a tiny random model."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from drafter_service.draft_loop import DraftLoop
from drafter_service.handshake import own_hello
from drafter_service.loaded_model import model_info
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from service_runtime.in_process_stream import in_process_call
from speculative_engine.drafters.draft_model import DraftModelDrafter
from speculative_engine.packed_model import PackedModel
from tests.drafter_service.verifier_side import VerifierSide
from tests.support.tiny_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("draft"))


@dataclass
class InProcessDrafter:
    """The whole service but for its process and port."""

    model: PackedModel
    drafting: DraftLoop
    servicer: DrafterServicer
    failures: list[BaseException]

    @asynccontextmanager
    async def connected(self, **hello: Any) -> AsyncIterator[VerifierSide]:
        async with in_process_call(self.servicer.converse) as stream:
            side = VerifierSide(stream)
            await side.hello(**hello)
            yield side


MakeDrafter = Callable[..., AbstractAsyncContextManager[InProcessDrafter]]


@pytest.fixture
def make_drafter(checkpoint: Path) -> MakeDrafter:
    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[InProcessDrafter]:
        chosen = DrafterSettings(**({"model": str(checkpoint), "kv_slots": 4096} | settings))
        model = PackedModel.load(chosen.model, slots=chosen.kv_slots, dtype="float32")
        failures: list[BaseException] = []
        drafting = DraftLoop(DraftModelDrafter(model), on_failure=failures.append, threads=1)
        hello = own_hello(chosen, model_info(model, "our-hash", bit_exact=True))
        drafting.start()
        try:
            yield InProcessDrafter(model, drafting, DrafterServicer(drafting, hello), failures)
        finally:
            await drafting.stop()
        assert not failures

    return make


@pytest.fixture
async def drafter(make_drafter: MakeDrafter) -> AsyncIterator[InProcessDrafter]:
    async with make_drafter() as made:
        yield made
