"""Assembles and runs the verifier service on vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from draftwire.v1.drafter_pool_service_pb2_grpc import (
    DrafterPoolServiceStub,
    add_DrafterPoolServiceServicer_to_server,
)
from draftwire.v1.model_info_pb2 import Limits
from draftwire.v1.verifier_service_pb2 import Capabilities
from draftwire.v1.verifier_service_pb2_grpc import add_VerifierServiceServicer_to_server
from draftwire_core.pool.drafter.proposal_sink import ProposalSink, SequenceProposal
from draftwire_core.pool.drafter_pool import DrafterPool, PoolLimits
from draftwire_core.runtime.observability.metrics_server import serving_metrics
from draftwire_core.runtime.observability.tracing import Tracing, running_tracing
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.rpc.handshake import introduce
from draftwire_core.runtime.rpc.server import ServiceServer
from draftwire_core.runtime.rpc.serving import serve
from verifier_service.admission.admission import Admission
from verifier_service.admission.expected_wait import ExpectedWait
from verifier_service.admission.peer_limits import PeerLimits
from verifier_service.metrics.collector import VerifierCollector
from verifier_service.reading.chat import chat_format_message
from verifier_service.reading.text_pool import TextPool
from verifier_service.running.request_drafters import RequestDrafters
from verifier_service.running.scores import Scores
from verifier_service.servicer import VerifierServicer
from verifier_service.settings import VerifierSettings
from verifier_service.verifier import ServedModel, Verifier
from verifier_service.vllm.pool import ForwardedPool, pool_channel
from verifier_service.vllm.refusals import REFUSED
from verifier_service.vllm.request import VllmRequestReader
from verifier_service.vllm.steps import VllmSteps
from verifier_service.vllm.target import VllmTarget, load_vllm_target


async def run_verifier(settings: VerifierSettings, server: ServiceServer, shutdown: Shutdown) -> None:
    """Starts vLLM, serves on `server` until shutdown, and ends vLLM. Raises StartupError.

    The port is open already: health checks and retrying clients are told "not yet" until the model is ready.
    """
    async with running_tracing(settings, "draftwire-verifier") as tracing:
        target = await asyncio.to_thread(load_vllm_target, settings)
        try:
            await _serve(settings, server, shutdown, tracing, target)
        finally:
            target.engine.shutdown()


async def _serve(
    settings: VerifierSettings, server: ServiceServer, shutdown: Shutdown, tracing: Tracing, target: VllmTarget
) -> None:
    await target.count_parameters()
    await target.load_adapters()
    address = await target.pool_address()
    async with (
        BackgroundTasks(shutdown.fail) as tasks,
        pool_channel(address, settings.max_message_bytes) as channel,
    ):
        verifier = assemble(settings, target, TextPool(server.heap.note), tasks, shutdown.fail, tracing)
        pool = ForwardedPool(DrafterPoolServiceStub(channel))
        server.add(add_VerifierServiceServicer_to_server, VerifierServicer(verifier))
        server.add(add_DrafterPoolServiceServicer_to_server, pool)
        await asyncio.to_thread(verifier.reader.prepare)
        verifier.start()

        async def drain(seconds: float) -> None:
            pool.end()
            await verifier.drain(seconds)

        try:
            async with serving_metrics(settings, VerifierCollector(verifier)):
                await serve(server, shutdown, settings.shutdown_grace_seconds, drain=drain)
        finally:
            await verifier.stop()


def assemble(
    settings: VerifierSettings,
    target: VllmTarget,
    texts: TextPool,
    tasks: BackgroundTasks,
    on_failure: Callable[[BaseException], None],
    tracing: Tracing,
) -> Verifier:
    """Returns a verifier of a target in vLLM; not yet started. Its own pool stays empty, as vLLM's has the drafters.

    on_failure: called with what ended vLLM.
    """
    tokenizer, info = target.tokenizer, target.info
    peers = PeerLimits(settings.max_requests_per_peer, settings.max_tokens_per_peer)
    longest = min(target.slots, peers.max_tokens) if peers.max_tokens else target.slots
    limits = Limits(
        max_sequences=target.places,
        max_tree_nodes=settings.max_tree_nodes,
        max_message_bytes=settings.max_message_bytes,
        max_sequence_tokens=min(info.context_length, longest),
    )
    identity = introduce(info, limits)
    cost = target.cost
    return Verifier(
        ServedModel(
            info,
            tokenizer,
            chat_format_message(tokenizer.chat_format),
            limits,
            identity.build,
            Capabilities(engine=settings.engine, refused=REFUSED, adapters=target.adapters),
        ),
        VllmRequestReader(
            tokenizer,
            info.vocab_size,
            info.context_length,
            longest,
            info.eos_token_ids,
            pool=texts,
            adapters=target.adapters,
            translate=target.translate,
            check_drafters=target.check_attached,
            runner_v2=target.runner_v2,
        ),
        VllmSteps(target.engine.engine_core, target.places, target.slots, cost),
        DrafterPool(_NoProposals(), identity, _unreachable, tasks, PoolLimits(settings.max_tree_nodes)),
        Admission(
            ExpectedWait(cost, target.most_rows), target.places + settings.max_waiting, settings.max_wait_seconds, peers
        ),
        Scores(None, peers, allowed=False),
        RequestDrafters(None),
        on_failure=on_failure,
        share_traffic=settings.share_traffic,
        tracing=tracing,
    )


class _NoProposals(ProposalSink):
    """The sink of a pool without drafters, which never proposes."""

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False) -> None:
        raise NotImplementedError

    def detach(self, sequence_id: int, source: str) -> None:
        raise NotImplementedError

    def forget(self, source: str) -> None:
        raise NotImplementedError

    def pause(self, source: str, *, paused: bool) -> None:
        raise NotImplementedError

    def propose(self, source: str, proposals: Sequence[SequenceProposal]) -> None:
        raise NotImplementedError

    def response_seconds(self, source: str) -> float | None:
        raise NotImplementedError


def _unreachable(address: str) -> NoReturn:
    raise NotImplementedError(f"the pool inside vLLM calls drafters, got {address}")
