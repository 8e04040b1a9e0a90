"""A verifier without sockets over a tiny random model, and the drafters it can reach."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import torch

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.token_log_probs_pb2 import TokenLogProbs
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.verification_engine import StepResult, VerificationEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.drafter.service_drafter import Connect
from draftwire_core.pool.standing.standings import DrafterClocks
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.rpc.in_process_stream import InProcessStream, in_process_call
from draftwire_core.runtime.rpc.message_stream import MessageStream, StreamBroken
from tests.harness.collected import collected
from tests.harness.services.loaded_models import loaded_model
from tests.harness.stand_ins.fixed_cost import FixedCost
from tests.harness.waiting import PATIENCE
from verifier_service.reading.text_pool import TextPool
from verifier_service.running.running_request import RunningRequest
from verifier_service.service import Surroundings, assemble
from verifier_service.settings import VerifierSettings
from verifier_service.target import Target
from verifier_service.verifier import Verifier

PROMPT = [5, 9, 14, 23, 42, 7]
TOKENS = 24
"""Tokens of a request that says nothing else."""

Handler = Callable[[MessageStream[Any, Any]], Awaitable[None]]


class Network:
    """Maps addresses to drafters. No other address can be reached."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._calls: dict[str, set[InProcessStream[Any, Any]]] = {}
        self.attempts: dict[str, int] = {}
        """Number of the verifier's calls to each address."""
        self.weights: dict[str, bytes] = {}
        """What each address sends as the weights of its features."""
        self.fetched: list[str] = []
        """The addresses whose weights were fetched."""

    def listen(self, address: str, handler: Handler) -> None:
        """Makes `handler` take the calls to an address."""
        self._handlers[address] = handler

    async def kill(self, address: str) -> None:
        """Removes the drafter at an address, as if its process were killed."""
        self._handlers.pop(address, None)
        for call in list(self._calls.get(address, ())):
            await call.sever(StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "connection reset by peer"))

    async def fetch_weights(self, address: str, sha256: str, size: int) -> bytearray:
        """The verifier's substitute for a call of GetFeatureWeights."""
        weights = self.weights[address]
        self.fetched.append(address)
        assert (hashlib.sha256(weights).hexdigest(), len(weights)) == (sha256, size)
        return bytearray(weights)

    def connect(self, address: str) -> Connect:
        """Returns the verifier's substitute for a channel."""

        @asynccontextmanager
        async def call() -> AsyncIterator[MessageStream[Any, Any]]:
            self.attempts[address] = self.attempts.get(address, 0) + 1
            if address not in self._handlers:
                raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"connection refused: {address}")
            async with in_process_call(self._handlers[address]) as stream:
                open_calls = self._calls.setdefault(address, set())
                open_calls.add(stream)
                try:
                    yield stream
                finally:
                    open_calls.discard(stream)

        return call


class SteppedEngine(VerificationEngine):
    """An engine whose steps a test can hold back, so that events fall into the middle of a request.

    It never runs ahead of the event loop: an immediate answer to a step arrives before the next step, however long the
    system delays threads.
    """

    TURNS = 16
    """Turns of the event loop between two steps: the most that a verdict and the drafter's answer take."""

    def __init__(self, model: PackedModel, limits: EngineLimits) -> None:
        cost = FixedCost([1, 256], [0.05, 0.05])  # high enough that waiting for a guess pays: drafts are used
        super().__init__(model, cost, limits, merging_clock=lambda: 0.0)
        self._loop = asyncio.get_running_loop()
        self._heard = True
        """Whether all messages about the last step have arrived."""
        self.wake: Callable[[], None] = lambda: None
        """Makes the thread check again for work."""
        self._changed = threading.Condition()
        self._permits: int | None = None
        self.held = False
        """Whether a step is held back now; commands posted meanwhile take effect after that step."""
        self.drafts_awaited = False
        """Whether a step waits until its drafters have drafted, so that the machine's load decides nothing."""
        self._waiting_since: float | None = None

    def hold(self, steps: int) -> None:
        """Runs this many more steps, then waits."""
        with self._changed:
            self._permits = steps
            self._changed.notify()

    def go_on(self) -> None:
        """Runs all steps without waiting."""
        with self._changed:
            self._permits = None
            self._changed.notify()

    def wait_seconds(self) -> float:
        if not self.drafts_awaited:
            return super().wait_seconds()
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        lacking = any(
            sequence.clocks
            and sequence.pending == 1
            and not sequence.tree.size
            and len(sequence.tokens) <= sequence.spec.max_length - 2
            for sequence in self._running.values()
        )
        return 0.05 if lacking and now < self._waiting_since + PATIENCE / 2 else 0.0

    def step(self) -> StepResult:
        self._waiting_since = None
        with self._changed:
            self.held = self._permits == 0
            assert self._changed.wait_for(lambda: self._permits is None or self._permits > 0, PATIENCE), "held for ever"
            self.held = False
            if self._permits is not None:
                self._permits -= 1
        result = super().step()
        self._heard = False
        self._loop.call_soon_threadsafe(self._turn, self.TURNS)
        return result

    @property
    def busy(self) -> bool:
        return self._heard and super().busy

    def _turn(self, left: int) -> None:
        if left:
            self._loop.call_soon(self._turn, left - 1)
        else:
            self._heard = True
            self.wake()


@dataclass
class Output:
    """The output of a request."""

    started: pb.GenerateStarted = field(default_factory=pb.GenerateStarted)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    sources: list[str | None] = field(default_factory=list)
    finished: pb.GenerateFinished = field(default_factory=pb.GenerateFinished)
    text_offsets: list[int] = field(default_factory=list)
    log_probs: list[TokenLogProbs] = field(default_factory=list)
    prompts: list[pb.PromptReport] = field(default_factory=list)

    def take(self, event: pb.GenerateResponse) -> None:
        kind = event.WhichOneof("event")
        if kind == "started":
            self.started = event.started
        elif kind == "chunk":
            chunk = event.chunk
            assert len(chunk.sources) == len(chunk.token_texts) == len(chunk.token_ids) > 0
            self.token_ids += chunk.token_ids
            self.text += chunk.text
            assert len(chunk.text_offsets) == len(chunk.token_ids)
            assert len(chunk.log_probs) in (0, len(chunk.token_ids))
            self.text_offsets += chunk.text_offsets
            self.log_probs += chunk.log_probs
            self.sources += [chunk.drafters[source - 1] if source else None for source in chunk.sources]
        elif kind == "prompt":
            assert not self.token_ids, "before the first chunk"
            self.prompts.append(event.prompt)
        else:
            self.finished = event.finished
            self.text += event.finished.text


_plain: dict[tuple[Path, bytes], Output] = {}


class InProcessVerifier:
    """A verifier with its engine, and methods that use both."""

    def __init__(self, checkpoint: Path, verifier: Verifier, engine: SteppedEngine, network: Network) -> None:
        self.checkpoint = checkpoint
        self.verifier = verifier
        self.engine = engine
        self.network = network
        self.pool = verifier.pool
        self.failures: list[BaseException] = []
        self.shutdown = Shutdown()
        self.dead = False
        """Set by a test that has killed the engine, which then frees no more slots."""

    @asynccontextmanager
    async def running(
        self, request: pb.GenerateRequest, remaining: float | None = None
    ) -> AsyncIterator[RunningRequest]:
        order = await self.verifier.reader.read(request)
        async with self.verifier.run(order, remaining=remaining) as running:
            yield running

    async def generate(self, request: pb.GenerateRequest, remaining: float | None = None) -> Output:
        """Runs a request to its end. remaining: seconds until its deadline, as given by the caller."""
        output = Output()
        async with asyncio.timeout(PATIENCE), self.running(request, remaining) as running:
            async for event in running.events():
                output.take(event)
        return output

    async def plain(self, request: pb.GenerateRequest) -> Output:
        """Returns what a request gives without drafters and without the prefix cache.

        Each request runs once per checkpoint, in the first verifier that is asked: no other work may change its output.
        """
        alone = pb.GenerateRequest()
        alone.CopyFrom(request)
        alone.speculation.enabled = False
        alone.prefix_cache = False
        key = (self.checkpoint, alone.SerializeToString(deterministic=True))
        if key not in _plain:
            _plain[key] = await self.generate(alone)
        return _plain[key]

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition that has no event."""
        async with asyncio.timeout(PATIENCE):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def freed(self) -> None:
        """Waits until no KV slot is in use."""
        await self.until(lambda: self.verifier.status().used_slots == 0)

    def state(self, name: str) -> Any:
        """Returns a drafter from ListDrafters; None if there is none with this name."""
        return next((drafter for drafter in self.pool.describe() if drafter.name == name), None)


@asynccontextmanager
async def in_process_verifier(
    checkpoint: Path,
    *,
    slots: int = 4096,
    max_sequences: int = 16,
    max_tree_nodes: int = 8,
    **options: Any,
) -> AsyncIterator[InProcessVerifier]:
    """Runs a verifier. At the end nothing may be left: no KV slot, no failed task, no unhandled exception.

    options: settings of the verifier, and fields of its `Surroundings`. By default, reading drafters' messages takes no
    time.
    """
    given = {"max_waiting": 4, "max_wait_seconds": 0.0, "max_message_bytes": 1 << 20} | options
    around = {"clocks": DrafterClocks(spent=lambda: 0.0)}
    around |= {name: given.pop(name) for name in Surroundings.__dataclass_fields__ if name in given}
    settings = VerifierSettings.model_construct(model=str(checkpoint), **given)
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    with collected(), loaded_model(checkpoint, slots) as model:
        limits = EngineLimits(
            max_sequences=max_sequences, max_step_rows=128, max_tree_nodes=max_tree_nodes, prefix_cache=True
        )
        async with _verifier(checkpoint, model, limits, settings, around) as made:
            yield made
    await asyncio.sleep(0)
    assert not made.failures
    assert not unseen


@asynccontextmanager
async def _verifier(
    checkpoint: Path,
    model: PackedModel,
    limits: EngineLimits,
    settings: VerifierSettings,
    around: dict[str, Any],
) -> AsyncIterator[InProcessVerifier]:
    tokenizer = Tokenizer.load(str(checkpoint))
    info = ModelInfo(
        model_id="target",
        architecture=model.architecture,
        parameters=model.parameters,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        dtype="float32",
        device="cpu",
        tokenizer_sha256=tokenizer.sha256,
        eos_token_ids=model.eos_token_ids,
        bit_exact=True,
    )
    engine = SteppedEngine(model, limits)
    network = Network()
    failures: list[BaseException] = []
    async with BackgroundTasks(failures.append) as tasks:
        surroundings = Surroundings(
            connect=network.connect,
            tasks=tasks,
            prepare=lambda: torch.set_num_threads(1),
            on_failure=failures.append,
            shutdown=Shutdown(),
            texts=TextPool(),
            **({"fetch_weights": network.fetch_weights} | around),
        )
        verifier = assemble(settings, Target(engine, tokenizer, info), surroundings)
        engine.wake = lambda: verifier._steps._thread.post(lambda: None, bounded=False)
        verifier.start()
        made = InProcessVerifier(checkpoint, verifier, engine, network)
        made.failures, made.shutdown = failures, surroundings.shutdown
        try:
            yield made
            engine.go_on()
            if not made.dead:
                await made.freed()
        finally:
            engine.go_on()
            await verifier.stop()


def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, seed=7)


def sampled() -> SamplingParams:
    return SamplingParams(temperature=1.2, top_p=0.95, seed=7)


def order(prompt: list[int] | None = None, max_tokens: int = TOKENS, **fields: Any) -> pb.GenerateRequest:
    """Returns a request that ignores the end of sequence by default."""
    fields = {"sampling": greedy(), "ignore_eos": True} | fields
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt or PROMPT), max_tokens=max_tokens, **fields)
