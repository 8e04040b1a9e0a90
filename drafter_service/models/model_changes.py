"""Model changes: the model that the drafter serves, and its replacement by another."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from drafter_service.conversation.draft_loop import DraftingCounts
from drafter_service.models.loaded_model import NoMemoryError
from drafter_service.models.loading import Loaded, load_drafter
from drafter_service.models.running_load import RunningLoad
from drafter_service.models.serving_model import ServingModel
from drafter_service.settings import DrafterSettings
from drafter_service.verifiers.shares import VerifierShares, parse_weights
from draftwire.v1 import drafter_service_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.checkpoint.load_errors import abandoned_by
from draftwire_core.engine.device.gpu import return_unused
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition, invalid_field
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.memory import free_locals, trim_heap
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.process.threads import call_in_thread
from draftwire_core.runtime.rpc.interceptors import service_error
from draftwire_core.runtime.threads.command_thread import TooManyCommands
from draftwire_core.runtime.threads.engine_thread import ThreadEnded

log = get_logger(__name__)

_MOVE_SECONDS = 60.0
"""Time that verifiers have to move their sequences to the new model."""
_STATUS_SECONDS = 1.0
"""Time that the drafting threads have to report their status."""
_RETRY_SECONDS = 60.0
"""Retry delay for a model that did not fit into memory."""
_MAX_REMEMBERED = 64
"""Maximum number of loads remembered by request id; the oldest are dropped first."""
_MAX_NAME = 4096
"""Maximum characters of a model's name or a request id."""


class ModelChanges:
    """Serves one model and loads the next next to it. Earlier models stay until their verifiers have left.

    At most three models are in memory: one being served, one being loaded, and one whose verifiers are still moving.
    """

    def __init__(
        self,
        settings: DrafterSettings,
        shutdown: Shutdown,
        load: Callable[[DrafterSettings], Loaded] = load_drafter,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """load: loads the model of some settings, in a thread; raises StartupError for an invalid one."""
        self._tracing = tracing
        self._settings = settings
        self._shutdown = shutdown
        self._load_model = load
        self._tasks = BackgroundTasks(shutdown.fail)
        self._shares = VerifierShares(parse_weights(settings.verifier_weight))
        self._serving: ServingModel
        self._replaced: list[ServingModel] = []
        self._loading: RunningLoad | None = None
        self._last_load: drafter_service_pb2.ModelLoad | None = None
        self.loads: Counter[str] = Counter()
        """Number of completed model changes by result, `done`, `failed` or `cancelled`."""
        self._ended = DraftingCounts()
        """Counts of released models."""
        self._by_request: OrderedDict[str, drafter_service_pb2.ModelLoad] = OrderedDict()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Loads the model of the settings and serves it until the `async with` is left. Raises StartupError."""
        self._serving = self._serve(await asyncio.to_thread(self._load_model, self._settings.with_hub_models()))
        try:
            async with self._tasks:
                yield self
        finally:
            for serving in (*self._replaced, self._serving):
                await serving.stop()

    @property
    def serving(self) -> ServingModel:
        """The model that new streams get."""
        return self._serving

    @property
    def last_load(self) -> drafter_service_pb2.ModelLoad | None:
        """The most recently requested model change."""
        return self._last_load

    @property
    def streams(self) -> int:
        """Number of streams of all models."""
        return sum(serving.streams for serving in self._serving_models())

    @property
    def sequences(self) -> int:
        """Approximate number of open sequences of all models."""
        return sum(serving.sequences for serving in self._serving_models())

    def slots(self) -> tuple[int, int]:
        """Returns the approximate number of used KV slots, and the total number, of all models."""
        used, total = zip(*(serving.slots() for serving in self._serving_models()), strict=True)
        return sum(used), sum(total)

    def verifiers(self) -> list[drafter_service_pb2.VerifierShare]:
        """Shares of the connected verifiers in all models; the numbers of sequences and slots are approximate."""
        shares = {
            share.name: drafter_service_pb2.VerifierShare(
                name=share.name,
                weight=share.weight,
                streams=share.streams,
                rows=share.rows,
                drafted_nodes=share.nodes,
                preemptions=share.preemptions,
            )
            for share in self._shares
        }
        for serving in self._serving_models():
            serving.tell_shares(shares)
        return list(shares.values())

    def counts(self) -> DraftingCounts:
        """Counts of all models, released ones included."""
        total = DraftingCounts()
        total.add(self._ended, self._ended.part_seconds)
        for serving in self._serving_models():
            serving.add_to(total)
        return total

    async def status(self) -> drafter_service_pb2.DrafterStatus | None:
        """Status of all models together; None when a drafting thread does not answer in time."""
        total = drafter_service_pb2.DrafterStatus()
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                # The served model comes last: fields that cannot be added up describe it alone.
                for serving in reversed(self._serving_models()):
                    try:
                        part = await serving.status()
                    except ThreadEnded:
                        continue  # it is being released
                    part.streams += total.streams
                    part.open_sequences += total.open_sequences
                    part.used_slots += total.used_slots
                    part.total_slots += total.total_slots
                    total = part
        except (TimeoutError, TooManyCommands):
            return None
        total.tasks = len(asyncio.all_tasks())
        total.verifiers.extend(self.verifiers())
        return total

    async def load(self, model: str, request_id: str, *, wait: bool = False) -> drafter_service_pb2.ModelLoad:
        """Starts loading a model, unless the same request already did. Returns its state.

        wait: return when it has ended, and end it if the caller leaves. Raises ServiceError.
        """
        running = self._loading
        if running is not None and request_id and running.message.request_id == request_id:
            if running.given_up.is_set():
                raise self._busy(running)
        elif request_id and request_id in self._by_request:
            return self._by_request[request_id]
        else:
            running = self._begin(model, request_id)
        if wait:
            await running.wait()
        else:
            running.keep()
        return running.message

    async def end_sessions(self) -> None:
        """Ends all streams cleanly; returns when the last has ended."""
        serving_models = self._serving_models()
        if self._loading is not None:
            self._loading.leave()
        for serving in serving_models:
            serving.end_sessions()
        for serving in serving_models:
            await serving.wait_empty()

    def _serving_models(self) -> tuple[ServingModel, ...]:
        return (self._serving, *self._replaced)

    def _serve(self, loaded: Loaded) -> ServingModel:
        return ServingModel(loaded, self._settings, self._shares, self._drafting_failed, self._tracing)

    def _drafting_failed(self, error: BaseException) -> None:
        log.error("drafting failed", exc_info=error)
        self._shutdown.fail(error)

    def _begin(self, model: str, request_id: str) -> RunningLoad:
        """Begins a load. Raises ServiceError."""
        if self._settings.tensor_parallel > 1:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_NOT_ENABLED,
                "this drafter's model is split among ranks (--tensor-parallel), which cannot load another one",
            )
        if not model:
            raise invalid_field("model", "must name a directory on the drafter's machine, or a hub id")
        for field, text in (("model", model), ("request_id", request_id)):
            if len(text) > _MAX_NAME or not text.isprintable():
                raise invalid_field(field, f"must be at most {_MAX_NAME} printable characters")
        if self._loading is not None:
            raise self._busy(self._loading)
        running = self._loading = RunningLoad(model, request_id)
        self._last_load = running.message
        self._tasks.spawn(self._change(running), name="model-change")
        return running

    def _busy(self, running: RunningLoad) -> ServiceError:
        return failed_precondition(
            ErrorReason.ERROR_REASON_BUSY, f"another model, {running.message.model}, is being loaded"
        )

    async def _change(self, running: RunningLoad) -> None:
        """Loads a model and replaces the served one with it, or records why not."""
        load = running.message
        settings = self._settings.model_copy(
            update={
                "medusa_heads" if self._settings.medusa_heads else "model": load.model,
                # The operator trusts the code of this checkpoint only, not of any that a caller names.
                "trust_remote_code": self._settings.trust_remote_code and load.model == self._settings.model,
                # Nor may a caller make the drafter download any model.
                "allow_hub_models": self._settings.allow_hub_models or load.model == self._settings.model,
                # The number of layers is meant for that checkpoint only.
                "layers": self._settings.layers if load.model == self._settings.model else None,
                "context_length": self._settings.context_length if load.model == self._settings.model else None,
            }
        )

        def loading() -> Loaded:
            with abandoned_by(running.given_up):
                return self._load_model(settings)

        loaded: Loaded | None = None
        fault: ServiceError | None = None
        try:
            loaded = await call_in_thread(loading, name="model-load", shutdown=self._shutdown)
        except asyncio.CancelledError:
            running.given_up.set()
            raise
        except Exception as error:  # noqa: BLE001 - foreign model code may raise anything; reported to the caller
            fault = None if running.given_up.is_set() else _fault(error)
            free_locals(error)
        if fault is None and loaded is not None and not running.given_up.is_set():
            self._replace(self._serve(loaded))
            self._end(running, "done")
            running.served()
            return
        loaded = None
        await asyncio.to_thread(_return_memory)
        if running.given_up.is_set():
            log.info("loading cancelled", model=load.model, seconds=round(running.seconds, 3))
            self._end(running, "cancelled")
            running.cancelled()
        elif fault is not None:
            log.warning("model change failed", model=load.model, reason=str(fault))
            self._end(running, "failed")
            running.failed(fault.to_status())

    def _end(self, running: RunningLoad, result: str) -> None:
        """Makes room for the next load. Calls that repeat a request get its result, unless it was cancelled."""
        self._loading = None
        self.loads[result] += 1
        if running.message.request_id and result != "cancelled":
            self._by_request[running.message.request_id] = running.message
            if len(self._by_request) > _MAX_REMEMBERED:
                self._by_request.popitem(last=False)

    def _replace(self, serving: ServingModel) -> None:
        for older in self._replaced:  # their verifiers had the time of a model load to move
            older.end_sessions()
        before, self._serving = self._serving, serving
        self._replaced.append(before)
        model = serving.hello.model
        log.info("model changed", model=model.model_id, before=before.hello.model.model_id, streams=before.streams)
        before.tell_replaced(model)
        self._tasks.spawn(self._retire(before), name="model-retirement")

    async def _retire(self, serving: ServingModel) -> None:
        """Releases a model once its verifiers have left, and ends streams that stay too long."""
        try:
            async with asyncio.timeout(_MOVE_SECONDS):
                await serving.wait_empty()
        except TimeoutError:
            log.warning("move to the new model timed out", streams=serving.streams)
            serving.end_sessions()
            await serving.wait_empty()
        await serving.stop()
        serving.add_to(self._ended)
        self._replaced.remove(serving)
        # Every load and every model has its own thread, and memory left in the heaps of threads would add up.
        await asyncio.to_thread(_return_memory)
        log.info("model released", model=serving.hello.model.model_id)


def _return_memory() -> None:
    """Returns memory that models have freed, the host's and the GPU's."""
    trim_heap()
    return_unused()


def _fault(error: Exception) -> ServiceError:
    """Returns the error reported to the caller for a failed load."""
    if isinstance(error, NoMemoryError):
        return at_capacity(str(error), _RETRY_SECONDS)
    if isinstance(error, StartupError):
        return invalid_field("model", str(error))
    return service_error(error)
