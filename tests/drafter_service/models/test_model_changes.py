"""Another model replaces the one that is served."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from google.rpc import error_details_pb2

from drafter_service.conversation import drafting_session
from drafter_service.models import model_changes
from drafter_service.models.loaded_model import NoMemoryError, load_model
from draftwire.v1 import drafter_service_pb2, sampling_pb2
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from tests.drafter_service.conftest import Held, Loader
from tests.harness.drafter.model_loads import LOADING, PROMPT, SERVING, eventually, info, load, loaded
from tests.harness.drafter.verifier_side import PATIENCE, VerifierSide, detail
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services

FAILED = drafter_service_pb2.MODEL_LOAD_STATE_FAILED


async def ends_cleanly(verifier: VerifierSide) -> None:
    async with asyncio.timeout(PATIENCE):
        async for message in verifier.stream:
            verifier._take(message)


async def drafted(verifier: VerifierSide, sequence_id: int) -> list[int]:
    await verifier.until(lambda: verifier.mirrors[sequence_id].tree.size >= 4)
    return verifier.mirrors[sequence_id].best_path()[:2]


class TestChange:
    async def test_new_streams_get_the_new_model_and_running_ones_keep_theirs(
        self, drafter: InProcessDrafter, other: Path, loader: Loader
    ) -> None:
        before = await info(drafter)
        assert not before.HasField("last_load")
        assert list(before.info.capabilities) == ["ping", "gathering", "distributions"]
        async with drafter.connected() as old:
            await old.open(1, PROMPT)
            path = await drafted(old, 1)
            loader.let.clear()
            begun = await load(drafter, other, "swap-1")
            assert (begun.model, begun.request_id, begun.state) == (str(other), "swap-1", LOADING)
            assert begun.HasField("started_at")
            during = await info(drafter)
            assert during.last_load == begun
            assert during.info == before.info
            await old.commit({1: path[:1]})  # it drafts while the other model loads
            await old.until(lambda: old.mirrors[1].tree.size >= 4)

            loader.let.set()
            await old.until(lambda: old.replaced)
            after = await info(drafter)
            assert after.last_load.state == SERVING
            assert after.info.model.model_id == other.name
            assert old.replaced == [after.info.model]
            async with drafter.connected() as new, in_process_call(drafter.servicer.converse) as stream:
                assert await VerifierSide(stream).hello() == after.info
                await new.open(1, PROMPT)
                await old.open(2, PROMPT)
                assert await drafted(new, 1) != await drafted(old, 2)
                assert old.mirrors[2].best_path()[:2] == path
                assert new.replaced == []
                both = (await info(drafter)).status
                assert (both.streams, both.open_sequences, both.total_slots) == (3, 3, 2 * 4096)
                assert both.used_slots > 0
                await old.end()
                await eventually(lambda: drafter.changes.streams == 2)
                await new.commit({1: new.mirrors[1].best_path()[:2]})
                await new.until(lambda: new.mirrors[1].tree.size >= 4)
        status = await drafter.status()
        assert status.tasks > 0
        held = (status.streams, status.open_sequences, status.used_slots, status.total_slots)
        assert held == (0, 0, 0, 4096)

    async def test_int8_weights_are_of_every_model(self, services: Services, checkpoint: Path, other: Path) -> None:
        async with services.in_process_drafter(
            checkpoint, load=load_model, weights="int8", dtype="bfloat16"
        ) as drafter:
            for model in (checkpoint, other):
                if model is other:
                    assert (await loaded(drafter, other)).state == SERVING
                told = (await info(drafter)).info.model
                assert (told.model_id, told.dtype) == (model.name, "int8")
                async with drafter.connected() as verifier:
                    await verifier.open(1, PROMPT)
                    await drafted(verifier, 1)

    async def test_the_old_models_memory_comes_back(self, drafter: InProcessDrafter, other: Path) -> None:
        """The old model is freed at once, without waiting for the garbage collector."""
        models: weakref.WeakSet[Any] = weakref.WeakSet([drafter.model, drafter.model.model, drafter.model.cache])
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await drafted(verifier, 1)
            gc.collect()
            gc.disable()
            try:
                await loaded(drafter, other)
                assert len(models) == 3
                await verifier.end()
                await eventually(lambda: not models)
            finally:
                gc.enable()

    async def test_a_verifier_that_stays_is_let_go(
        self, drafter: InProcessDrafter, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_changes, "_MOVE_SECONDS", 0.1)
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await loaded(drafter, other)
            await ends_cleanly(verifier)
            assert [model.model_id for model in verifier.replaced] == [other.name]
        await eventually(lambda: drafter.changes._replaced == [])

    async def test_one_that_does_not_even_read_is_cut_off(
        self, drafter: InProcessDrafter, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_changes, "_MOVE_SECONDS", 0.1)
        monkeypatch.setattr(drafting_session, "_FLUSH_SECONDS", 0.1)
        async with in_process_call(drafter.servicer.converse, max_buffered=1) as stream:
            verifier = VerifierSide(stream)
            await verifier.hello()
            for sequence_id in range(4):
                await verifier.open(sequence_id, PROMPT)
            await loaded(drafter, other)
            await eventually(lambda: drafter.changes._replaced == [])
        assert (await drafter.status()).total_slots == 4096

    async def test_a_third_model_ends_the_first_ones_streams(
        self, drafter: InProcessDrafter, checkpoint: Path, other: Path
    ) -> None:
        async with drafter.connected() as first:
            await loaded(drafter, other)
            async with drafter.connected() as second:
                await loaded(drafter, checkpoint)
                await ends_cleanly(first)
                await second.until(lambda: second.replaced)
                await second.open(1, PROMPT)
                await drafted(second, 1)
                assert (await info(drafter)).info.model.model_id == checkpoint.name

    async def test_a_stream_that_begins_within_the_change_is_told_after_its_hello(
        self, drafter: InProcessDrafter, other: Path
    ) -> None:
        async with in_process_call(drafter.servicer.converse) as stream:
            await asyncio.sleep(0)  # the call begins
            await eventually(lambda: drafter.changes.streams == 1)
            await loaded(drafter, other)
            verifier = VerifierSide(stream)
            assert (await verifier.hello()).model.model_id != other.name
            await verifier.until(lambda: verifier.replaced)


class TestFailure:
    @pytest.fixture(autouse=True)
    async def still_serves(self, drafter: InProcessDrafter) -> AsyncIterator[None]:
        """After each failure, running and new streams have the model that was served before."""
        model = (await info(drafter)).info
        async with drafter.connected() as verifier:
            yield
            assert (await info(drafter)).info == model
            await verifier.open(1, PROMPT)
            await drafted(verifier, 1)
            assert verifier.replaced == []

    async def test_what_is_no_model(self, drafter: InProcessDrafter, tmp_path: Path) -> None:
        failed = await loaded(drafter, tmp_path / "missing", "a")
        assert (failed.state, failed.request_id) == (FAILED, "a")
        assert failed.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert str(tmp_path / "missing") in failed.error.message
        assert detail(failed.error, error_details_pb2.ErrorInfo).reason == "INVALID_FIELD"
        assert detail(failed.error, error_details_pb2.BadRequest).field_violations[0].field == "model"

    @pytest.mark.parametrize("model", ["lab/draft", "hf://lab/draft"])
    async def test_a_hub_id_without_leave(self, drafter: InProcessDrafter, model: str) -> None:
        failed = await loaded(drafter, model)
        assert failed.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert failed.error.message == (
            f"model: model {model}: no such directory, and models of the hub are not fetched for callers without "
            "--allow-hub-models"
        )

    async def test_no_memory(self, drafter: InProcessDrafter, other: Path, loader: Loader) -> None:
        loader.fault = NoMemoryError("no room")
        failed = await loaded(drafter, other)
        assert detail(failed.error, error_details_pb2.ErrorInfo).reason == "AT_CAPACITY"
        assert detail(failed.error, error_details_pb2.RetryInfo).retry_delay.ToSeconds() > 0

    @pytest.mark.parametrize("fault", [ZeroDivisionError("foreign code"), SystemExit(3)], ids=repr)
    async def test_a_fault_nobody_thought_of(
        self, drafter: InProcessDrafter, other: Path, fault: BaseException, loader: Loader
    ) -> None:
        loader.fault = fault
        failed = await loaded(drafter, other)
        assert failed.error.code == grpc.StatusCode.INTERNAL.value[0]
        assert detail(failed.error, error_details_pb2.ErrorInfo).metadata["incident"]

    @pytest.mark.parametrize(
        ("model", "request_id", "field"),
        [("", "", "model"), ("m" * 5000, "", "model"), ("a\0b", "", "model"), ("m", "i" * 5000, "request_id")],
    )
    async def test_a_bad_request_names_its_field(
        self, drafter: InProcessDrafter, model: str, request_id: str, field: str
    ) -> None:
        with pytest.raises(ServiceError) as caught:
            await load(drafter, model, request_id)
        assert caught.value.reason_name == "INVALID_FIELD"
        assert caught.value.field_violations[0].field == field
        assert not (await info(drafter)).HasField("last_load")


async def test_who_may_name_a_model_of_the_hub(services: Services, checkpoint: Path, other: Path) -> None:
    """The operator may name any; callers only models that the operator named, unless a setting allows more."""
    for allowed in (False, True):
        loader = Loader()
        async with services.in_process_drafter(checkpoint, load=loader, allow_hub_models=allowed) as drafter:
            await loaded(drafter, other)
            await loaded(drafter, checkpoint)
        seen = [(each.model, each.allow_hub_models) for each in loader.settings]
        assert seen == [(str(checkpoint), True), (str(other), allowed), (str(checkpoint), True)]


class TestRequests:
    async def test_a_repeated_request_starts_nothing(
        self, drafter: InProcessDrafter, other: Path, tmp_path: Path, loader: Loader
    ) -> None:
        loader.let.clear()
        begun = await load(drafter, other, "one")
        assert await load(drafter, other, "one") == begun
        with pytest.raises(ServiceError) as caught:
            await load(drafter, other, "two")
        assert (caught.value.code, caught.value.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "BUSY")
        with pytest.raises(ServiceError):
            await load(drafter, other)
        loader.let.set()
        await eventually(lambda: drafter.changes.last_load.state == SERVING)  # type: ignore[union-attr]
        assert (await load(drafter, other, "one")).state == SERVING
        await loaded(drafter, tmp_path / "missing", "two")
        assert (await load(drafter, other, "one")).state == SERVING
        assert (await load(drafter, tmp_path / "missing", "two")).state == FAILED
        assert len(loader.settings) == 3  # including the first model's
        assert (await loaded(drafter, other)).state == SERVING
        assert len(loader.settings) == 4

    async def test_requests_are_forgotten_in_time(
        self, drafter: InProcessDrafter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Loader
    ) -> None:
        monkeypatch.setattr(model_changes, "_MAX_REMEMBERED", 2)
        for request_id in ("a", "b", "c", "a"):
            await loaded(drafter, tmp_path / "missing", request_id)
        assert len(loader.settings) == 1 + 4
        await loaded(drafter, tmp_path / "missing", "c")
        assert len(loader.settings) == 1 + 4

    async def test_only_the_operators_own_checkpoint_may_bring_code(
        self, services: Services, checkpoint: Path, other: Path, loader: Loader
    ) -> None:
        async with services.in_process_drafter(checkpoint, load=loader, trust_remote_code=True) as drafter:
            await loaded(drafter, other)
            await loaded(drafter, checkpoint)
            assert [each.trust_remote_code for each in loader.settings] == [True, False, True]

    async def test_layers_are_of_the_settings_own_checkpoint(
        self, services: Services, checkpoint: Path, other: Path, loader: Loader
    ) -> None:
        async with services.in_process_drafter(checkpoint, load=loader, layers=1) as drafter:
            await loaded(drafter, other)
            await loaded(drafter, checkpoint)
            assert [each.layers for each in loader.settings] == [1, None, 1]


class TestStatus:
    async def test_a_model_that_hangs_gives_no_status(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_changes, "_STATUS_SECONDS", 0.1)
        model = Held(drafter.model, monkeypatch)
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await model.hangs()
            answer = await info(drafter)
            assert not answer.HasField("status")
            assert answer.info == drafter.changes.serving.hello
            model.let_go()
        assert await drafter.open_sequences() == 0

    async def test_the_end_does_not_wait_for_a_load(
        self, services: Services, checkpoint: Path, other: Path, loader: Loader
    ) -> None:
        async with services.in_process_drafter(checkpoint, load=loader) as drafter:
            loader.let.clear()
            await load(drafter, other)
            await eventually(lambda: len(loader.settings) == 2)
            async with asyncio.timeout(PATIENCE):
                await drafter.servicer.end_sessions()
        [thread] = drafter.shutdown.left_behind
        loader.let.set()
        await asyncio.to_thread(thread.join, PATIENCE)
        assert drafter.shutdown.left_behind == []


async def test_drafting_does_not_see_what_a_load_does_to_torch(drafter: InProcessDrafter) -> None:
    """transformers sets the process-wide default dtype while it creates a model."""
    sampling = sampling_pb2.SamplingParams(temperature=1.2, top_k=30, top_p=0.9, min_p=0.01, seed=9)
    trees = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            async with drafter.connected() as verifier:
                await verifier.open(1, PROMPT, sampling=sampling)
                await verifier.open(2, PROMPT, sampling=sampling_pb2.SamplingParams(top_p=0.8, seed=3))
                await verifier.open(3, PROMPT)
                await verifier.until(lambda verifier=verifier: len(verifier.opened) == 3)
                for mirror in verifier.mirrors.values():
                    await verifier.until(lambda mirror=mirror: mirror.tree.size >= 3)
                trees.append([list(mirror.tree.root.children) for mirror in verifier.mirrors.values()])
        finally:
            torch.set_default_dtype(torch.float32)
    assert trees[0] == trees[1]
