"""A verifier without a model, on a real gRPC server. It injects scripted faults and records the requests.

As with a real verifier, the token at position t is a function of prompt, seed and t. Each token is a letter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from draftwire._messages.methods import RECEIPT
from draftwire.v1 import drafter_pool_service_pb2 as pool
from draftwire.v1 import drafter_pool_service_pb2_grpc as pool_grpc
from draftwire.v1 import drafter_service_pb2 as drafting
from draftwire.v1 import drafter_service_pb2_grpc as drafting_grpc
from draftwire.v1 import speculation_pb2
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1 import verifier_service_pb2_grpc as pb_grpc
from draftwire.v1.learning_pb2 import LearningStatus
from draftwire.v1.proposal_pb2 import Proposal
from draftwire.v1.token_log_probs_pb2 import TokenLogProb, TokenLogProbs
from draftwire.v1.verdict_pb2 import Verdict
from tests.harness.waiting import PATIENCE

PROMPT = "def f"
PROMPT_IDS = [ord(letter) for letter in PROMPT]


def expected_ids(seed: int, count: int, prompt: Sequence[int] = PROMPT_IDS) -> list[int]:
    """Returns the tokens that a request generates."""
    return [97 + (seed * 31 + t * 7 + sum(prompt)) % 26 for t in range(len(prompt), len(prompt) + count)]


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(token_id) for token_id in ids)


def log_probs_of(token: int, top: int) -> TokenLogProbs:
    """Returns made-up log-probabilities: minus the code of each token's letter."""

    def one(token: int) -> TokenLogProb:
        return TokenLogProb(token_id=token, log_prob=-token, text=chr(token), text_bytes=chr(token).encode())

    return TokenLogProbs(token=one(token), rank=2, top=[one(token + index) for index in range(top)])


def prompt_report(request: pb.GenerateRequest, prompt: Sequence[int], at: int) -> pb.PromptReport:
    """Returns a report of two prompt tokens."""
    part = prompt[at : at + 2]
    report = pb.PromptReport(
        text=text_of(part),
        token_ids=part,
        token_texts=[chr(each) for each in part],
        text_offsets=range(at, at + len(part)),
    )
    if request.HasField("prompt_log_probs"):
        report.log_probs.extend(log_probs_of(each, request.prompt_log_probs) for each in part)
        if at == 0:
            report.log_probs[0].Clear()
    return report


def rich_status(
    code: grpc.StatusCode,
    message: str,
    reason: str | None = None,
    fields: tuple[str, ...] = (),
    retry_after: float | None = None,
    domain: str = "draftwire",
) -> status_pb2.Status:
    """Returns a status with the details that the services attach."""
    status = status_pb2.Status(code=code.value[0], message=message)
    if reason is not None:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata={"build": "fake"}))
    if fields:
        bad = error_details_pb2.BadRequest()
        for field in fields:
            bad.field_violations.add(field=field, description="is wrong")
        status.details.add().Pack(bad)
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(retry_after * 1e9))
        status.details.add().Pack(retry)
    return status


class FakeVerifier(pb_grpc.VerifierServiceServicer, pool_grpc.DrafterPoolServiceServicer):
    """Serves on a free port from `start` (or `with`) to `stop`, together with a fake drafter service."""

    def __init__(self) -> None:
        self.requests: list[pb.GenerateRequest] = []
        self.calls: list[str] = []
        self.remaining_seconds: list[float | None] = []
        self.metadata: list[dict[str, str]] = []
        """Metadata of the generation calls."""
        self.break_after: list[int] = []
        """For each of the next Generate calls, the number of tokens after which it fails with `break_status`."""
        self.as_it_breaks: Callable[[], object] = lambda: None
        """Called before a Generate call is interrupted."""
        self.breaks_in_prompt = 0
        """Number of the next Generate calls that fail between two parts of the prompt report."""
        self.dies_on: str | None = None
        """A prompt whose request kills the verifier, as a crash would, after the receipt is sent."""
        self.break_status = rich_status(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        self.fingerprint = "one target"
        self.numerics = "one arithmetic"
        self.pool_requests: list[Any] = []
        """Requests that change the pool, or a drafter's model."""
        self.learning: dict[str, LearningStatus] = {}
        """Reports of learners, by drafter."""
        self.refused: list[str] = []
        """Capabilities that its engine refuses."""
        self.adapters: list[str] = []
        """Names of its target's LoRA adapters."""
        self.attachments: list[pool.AttachDrafterRequest] = []
        self.rollouts: list[pool.Rollout] = []
        self.load = drafting.ModelLoad()
        self.load_steps: list[int] = []
        """States that the next queries of the load return, one each."""
        self.hang_after: int | None = None
        """Number of tokens after which Generate sends nothing until it is cancelled."""
        self.failures: list[status_pb2.Status] = []
        """Errors of the next calls to any method."""
        self.fails_on: dict[str, Any] = {}
        """Errors of calls, by method name."""
        self.fails_for: dict[str, Any] = {}
        """Errors of Generate, by prompt text."""
        self.after_break: Callable[[], None] = lambda: None
        """Called before WatchDrafters breaks off."""
        self.skew_drafted = 0
        """Added to the seed where speculation is on: simulates a verifier whose drafts change the output."""
        self.cancelled = threading.Event()
        self.running = 0
        self.most_running = 0
        self.gathers = 0
        """Number of Generate calls that must run at once before any continues."""
        self.delay = 0.0
        self.tokenized: list[pb.TokenizeRequest] = []
        self.swaps_after: threading.Event | None = None
        """Event that a swap waits for, if any."""
        self.starts: list[pb.VerifyStart] = []
        """First message of each Verify call."""
        self.proposals: list[Proposal] = []
        """Drafts of callers. As with a real verifier, tokens do not depend on them."""
        self.waits_for_proposals = False
        """Whether Verify waits for a draft before each chunk: up to a second, for the first two as long as needed."""
        self.refuses_proposals = False
        self.told_requests: int | None = None
        """Number of requests that it reports."""
        self.serving = True
        """Health that it reports after `health_delay` seconds, unless `health_code` is set."""
        self.health_code: grpc.StatusCode | None = None
        self.health_delay = 0.0
        self.health_checks = 0
        self.address = ""
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None

    def start(self, address: str = "127.0.0.1:0") -> Self:
        self._server = grpc.server(ThreadPoolExecutor(40))
        pb_grpc.add_VerifierServiceServicer_to_server(self, self._server)
        pool_grpc.add_DrafterPoolServiceServicer_to_server(self, self._server)
        drafting_grpc.add_DrafterServiceServicer_to_server(FakeDrafter(self), self._server)
        health: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._tell_health)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": health})]
        )
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        self._server.start()
        return self

    def is_idle(self) -> bool:
        """Waits until no Generate call runs."""
        return self._until(lambda: not self.running)

    def _until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return condition()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _tell_health(self, _: bytes, context: Any) -> bytes:
        self.health_checks += 1
        ended = threading.Event()
        if self.health_delay and context.add_callback(ended.set):
            ended.wait(self.health_delay)
        if self.health_code is not None:
            context.abort(self.health_code, "nothing to tell")
        return b"\x08\x01" if self.serving else b"\x08\x02"

    # ---- VerifierService

    def Generate(self, request: pb.GenerateRequest, context: Any, begun: bool = False) -> Iterator[pb.GenerateResponse]:
        self.requests.append(request)
        if not begun:
            self.begin("Generate", context)
            context.send_initial_metadata(RECEIPT)
        ended = threading.Event()

        def leave() -> bool:
            with self._lock:
                left = not ended.is_set()
                self.running -= left
                ended.set()
            return left

        def end() -> None:
            if leave():
                self.cancelled.set()

        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        if not context.add_callback(end):  # the call is already over
            end()
        assert self._until(lambda: ended.is_set() or self.most_running >= self.gathers)
        if request.WhichOneof("prompt") == "text" and request.text in self.fails_for:
            leave()
            context.abort_with_status(rpc_status.to_status(self.fails_for[request.text]))
        yield from self._events(request, context, ended)
        leave()  # before the caller sees the end and calls again

    def Verify(self, requests: Iterator[pb.VerifyRequest], context: Any) -> Iterator[pb.VerifyResponse]:
        self.begin("Verify", context)
        context.send_initial_metadata(RECEIPT)
        start = next(requests).start
        self.starts.append(start)
        proposed, chunks, silent = threading.Event(), 0, False

        def read() -> None:
            nonlocal silent
            with suppress(grpc.RpcError):  # the call has ended
                for message in requests:
                    self.proposals.append(message.proposal)
                    proposed.set()
            silent = True
            proposed.set()

        threading.Thread(target=read, daemon=True).start()
        request = start.request
        tokens = [*(request.token_ids.ids or map(ord, request.text)), *request.resume_token_ids]
        yield pb.VerifyResponse(
            opened=pb.VerifyOpened(
                token_ids=tokens,
                sampling=request.sampling,
                max_tree_nodes=8,
                max_length=len(tokens) + request.max_tokens,
                vocab_size=200,
            )
        )
        for event in self.Generate(request, context, begun=True):
            if event.HasField("chunk"):
                if self.waits_for_proposals:
                    chunks += 1
                    proposed.wait(PATIENCE if chunks < 3 else 1)
                    if not silent:
                        proposed.clear()
                if self.refuses_proposals:
                    yield pb.VerifyResponse(refused=status_pb2.Status(code=3, message="not a tree"))
                tokens += event.chunk.token_ids
                verdict = Verdict(committed_length=len(tokens), token_ids=event.chunk.token_ids)
                yield pb.VerifyResponse(verdict=verdict)
            yield pb.VerifyResponse(event=event)

    def _events(
        self, request: pb.GenerateRequest, context: Any, ended: threading.Event
    ) -> Iterator[pb.GenerateResponse]:
        self.metadata.append({key: value for key, value in context.invocation_metadata() if isinstance(value, str)})
        kind = request.WhichOneof("prompt")
        if kind == "messages":
            prompt = [ord(letter) for m in request.messages.messages for letter in m.role + m.content]
        else:
            prompt = list(request.token_ids.ids) or [ord(letter) for letter in request.text]
        break_after = self.break_after.pop(0) if self.break_after else None
        started = pb.GenerateStarted(
            request_id=request.request_id or f"fake-{len(self.requests)}",
            prompt_tokens=len(prompt),
            seed=request.sampling.seed,
            prompt_token_ids=() if kind == "token_ids" else prompt,
            model_fingerprint=self.fingerprint,
            requests=self.told_requests,
            numerics=self.numerics,
        )
        if request.text == self.dies_on:
            time.sleep(0.3)  # gives the receipt time to arrive before the process dies
            threading.Thread(target=self.stop).start()
            ended.wait()
            return
        yield pb.GenerateResponse(started=started)
        for at in range(0, len(prompt), 2) if request.echo or request.HasField("prompt_log_probs") else ():
            yield pb.GenerateResponse(prompt=prompt_report(request, prompt, at))
            if self.breaks_in_prompt:
                self.breaks_in_prompt -= 1
                context.abort_with_status(rpc_status.to_status(self.break_status))
        skew = self.skew_drafted if request.speculation.enabled else 0
        ids = expected_ids(request.sampling.seed + skew, request.max_tokens, prompt)
        done = len(request.resume_token_ids)
        assert list(request.resume_token_ids) == ids[:done]
        sent = steps = 0
        for at in range(done, len(ids), 2):
            if break_after is not None and sent >= break_after:
                self.as_it_breaks()
                context.abort_with_status(rpc_status.to_status(self.break_status))
            if self.hang_after is not None and sent >= self.hang_after:
                ended.wait()
                return
            time.sleep(self.delay)
            step = ids[at : at + 2]
            sources = [1, 0][-len(step) :]
            yield pb.GenerateResponse(
                chunk=pb.GenerateChunk(
                    token_ids=step,
                    text=text_of(step if at + 2 < len(ids) else step[:-1]),  # the last letter is held back
                    sources=sources,
                    drafters=["good"],
                    token_texts=[chr(token_id) for token_id in step],
                    text_offsets=range(at, at + len(step)),
                    log_probs=[log_probs_of(each, request.log_probs) for each in step]
                    if request.HasField("log_probs")
                    else (),
                    rejected=[pb.RejectedDraft(token_id=63, text="?", source=1, position=len(prompt) + at, depth=1)]
                    if request.report_rejected
                    else (),
                )
            )
            sent, steps = sent + len(step), steps + 1
        if break_after is not None and sent >= break_after:
            self.as_it_breaks()
            context.abort_with_status(rpc_status.to_status(self.break_status))
        finished = pb.GenerateFinished(
            finish_reason=pb.FINISH_REASON_LENGTH,
            text=text_of(ids[-1:]),
            usage=pb.Usage(
                prompt_tokens=len(prompt), completion_tokens=len(ids), first_token_seconds=0.25, total_seconds=0.5
            ),
        )
        finished.speculation.steps = steps
        finished.speculation.draft_tokens = 2 * steps
        finished.speculation.accepted_tokens = sent // 2
        finished.speculation.hits = steps // 2
        finished.speculation.drafts = steps
        finished.speculation.accepted_per_position.append(sent // 2)
        if request.speculation.preset:
            finished.speculation.preset = speculation_pb2.ACCEPTANCE_PRESET_CODE
            finished.speculation.acceptance = speculation_pb2.ACCEPTANCE_RULE_THRESHOLD
            finished.speculation.threshold = 0.75
            finished.speculation.lossless = False
        finished.speculation.drafters.add(name="good", draft_tokens=2 * steps, accepted_tokens=sent // 2)
        yield pb.GenerateResponse(finished=finished)

    def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        self.begin("Tokenize", context)
        self.tokenized.append(request)
        text = request.text or "".join(each.role + each.content for each in request.messages.messages)
        ids = [ord(letter) for letter in text]
        return pb.TokenizeResponse(
            token_ids=[1, *ids] if request.add_special_tokens else ids,
            text_offsets=range(len(ids)),
            token_texts=text,
        )

    def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        self.begin("Detokenize", context)
        return pb.DetokenizeResponse(text=text_of(request.token_ids))

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        self.begin("GetModelInfo", context)
        response = pb.GetModelInfoResponse(build="fake 1")
        response.model.model_id, response.model.vocab_size, response.model.eos_token_ids[:] = "fake", 128, [0]
        response.limits.max_sequences = 4
        response.capabilities.refused[:] = self.refused
        response.capabilities.adapters[:] = self.adapters
        response.engine.total_slots = 64
        response.engine.times.steps = 3
        response.engine.times.forward.FromMilliseconds(1500)
        planner = response.engine.planner
        planner.step_costs.add(rows=8).time.FromMilliseconds(125)
        planner.calibrations.add(drafter="good", first_acceptance=0.75).response_time.FromMilliseconds(250)
        planner.calibrations[0].classes.add(rank=1, above=0.3, acceptance=0.5, observations=20.0)
        planner.sequences, planner.draft_tokens = 4, 10
        planner.expected_tokens, planner.committed_tokens = 6.5, 9
        planner.probe_rows = 12
        response.engine.gain.tokens, response.engine.gain.sequences = 30, 12
        response.engine.gain.time.FromSeconds(2)
        response.engine.gain.plain_time.FromSeconds(3)
        typical = speculation_pb2.ACCEPTANCE_RULE_TYPICAL
        response.engine.acceptance.add(rule=typical, requests=2, tokens=30, draft_tokens=20, accepted_tokens=10)
        return response

    # ---- DrafterPoolService

    def ListDrafters(self, request: pool.ListDraftersRequest, context: Any) -> pool.ListDraftersResponse:
        self.begin("ListDrafters", context)
        drafters = [drafter_message("good"), drafter_message("bad")]
        for drafter in drafters:
            if drafter.name in self.learning:
                drafter.learning.CopyFrom(self.learning[drafter.name])
        return pool.ListDraftersResponse(drafters=drafters)

    def AttachDrafter(self, request: pool.AttachDrafterRequest, context: Any) -> pool.AttachDrafterResponse:
        self.attachments.append(request)
        self.begin("AttachDrafter", context)
        drafter = drafter_message(request.name or request.address, request.address)
        drafter.labels.clear()
        drafter.labels.update(request.labels)
        drafter.trusted = request.trusted
        return pool.AttachDrafterResponse(drafter=drafter)

    def DetachDrafter(self, request: pool.DetachDrafterRequest, context: Any) -> pool.DetachDrafterResponse:
        self.begin("DetachDrafter", context)
        return pool.DetachDrafterResponse(drafter=drafter_message(request.name))

    def SwapDrafter(self, request: pool.SwapDrafterRequest, context: Any) -> pool.SwapDrafterResponse:
        self.pool_requests.append(request)
        self.begin("SwapDrafter", context)
        if self.swaps_after is not None:
            assert self.swaps_after.wait(PATIENCE)
        return pool.SwapDrafterResponse(drafter=drafter_message(request.new_name), moved_sequences=3)

    def StartRollout(self, request: pool.StartRolloutRequest, context: Any) -> pool.StartRolloutResponse:
        self.pool_requests.append(request)
        self.begin("StartRollout", context)
        rollout = pool.Rollout(share=request.share, state=pool.ROLLOUT_STATE_RUNNING)
        rollout.old.name, rollout.new.name = request.old_name, request.new_name
        rollout.new.steps, rollout.new.draft_tokens, rollout.new.accepted_tokens = 4, 10, 6
        rollout.new.sequence_steps = 8
        rollout.new.drafting_time.FromSeconds(2)
        rollout.started_at.FromSeconds(1_700_000_000)
        self.rollouts.append(rollout)
        return pool.StartRolloutResponse(rollout=rollout)

    def FinishRollout(self, request: pool.FinishRolloutRequest, context: Any) -> pool.FinishRolloutResponse:
        self.begin("FinishRollout", context)
        for rollout in self.rollouts:
            if rollout.new.name == request.new_name and rollout.state == pool.ROLLOUT_STATE_RUNNING:
                rollout.state = pool.ROLLOUT_STATE_PROMOTED if request.promote else pool.ROLLOUT_STATE_WITHDRAWN
                rollout.reason = "asked for"
                rollout.ended_at.FromSeconds(1_700_000_060)
                return pool.FinishRolloutResponse(rollout=rollout)
        missing = rich_status(grpc.StatusCode.NOT_FOUND, f"no rollout of {request.new_name}", "ROLLOUT_NOT_FOUND")
        context.abort_with_status(rpc_status.to_status(missing))
        raise AssertionError

    def ListRollouts(self, request: pool.ListRolloutsRequest, context: Any) -> pool.ListRolloutsResponse:
        self.begin("ListRollouts", context)
        return pool.ListRolloutsResponse(rollouts=self.rollouts)

    def RegisterDrafter(self, request: pool.RegisterDrafterRequest, context: Any) -> pool.RegisterDrafterResponse:
        self.begin("RegisterDrafter", context)
        return pool.RegisterDrafterResponse()

    def ReportLearning(self, request: pool.ReportLearningRequest, context: Any) -> pool.ReportLearningResponse:
        self.begin("ReportLearning", context)
        self.learning[request.drafter_name] = request.learning
        return pool.ReportLearningResponse()

    def WatchDrafters(self, request: pool.WatchDraftersRequest, context: Any) -> Iterator[pool.WatchDraftersResponse]:
        self.begin("WatchDrafters", context)
        ended = threading.Event()

        def end() -> None:
            ended.set()
            self.cancelled.set()

        if not context.add_callback(end):
            end()
        yield pool.WatchDraftersResponse(drafters=[drafter_message("good")])
        yield pool.WatchDraftersResponse(drafters=[])
        if self.break_after:
            self.break_after.pop(0)
            self.after_break()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        ended.wait()

    def end_load(self) -> None:
        """Takes the load to the next of its states."""
        if self.load_steps:
            self.load.state = self.load_steps.pop(0)  # type: ignore[assignment]
        if self.load.state == drafting.MODEL_LOAD_STATE_FAILED:
            self.load.error.CopyFrom(rich_status(grpc.StatusCode.INVALID_ARGUMENT, "no such model", "INVALID_FIELD"))

    def begin(self, name: str, context: Any) -> None:
        self.calls.append(name)
        self.remaining_seconds.append(context.time_remaining())
        if self.failures:
            context.abort_with_status(rpc_status.to_status(self.failures.pop(0)))
        if name in self.fails_on:
            context.abort_with_status(rpc_status.to_status(self.fails_on[name]))


class FakeDrafter(drafting_grpc.DrafterServiceServicer):
    """A drafter service that claims to load models."""

    def __init__(self, verifier: FakeVerifier) -> None:
        self._fake = verifier

    def LoadModel(self, request: drafting.LoadModelRequest, context: Any) -> drafting.LoadModelResponse:
        fake = self._fake
        fake.pool_requests.append(request)
        fake.load = drafting.ModelLoad(
            model=request.model, request_id=request.request_id, state=drafting.MODEL_LOAD_STATE_LOADING
        )
        fake.begin("LoadModel", context)
        if request.wait:
            fake.end_load()
        return drafting.LoadModelResponse(load=fake.load)

    def GetModelInfo(
        self, request: drafting.DrafterServiceGetModelInfoRequest, context: Any
    ) -> drafting.DrafterServiceGetModelInfoResponse:
        fake = self._fake
        fake.begin("DrafterService.GetModelInfo", context)
        response = drafting.DrafterServiceGetModelInfoResponse()
        response.info.build, response.info.model.model_id = "fake 1", "draft"
        response.status.streams, response.status.used_slots, response.status.total_slots = 1, 5, 64
        response.status.times.wait.FromMilliseconds(250)
        response.status.step_costs.add(rows=1).time.FromMilliseconds(2)
        response.status.classes.add(rank=2)
        response.status.drafted_nodes = 7
        response.status.verifiers.add(name="alice", weight=2.0, streams=1, rows=9, drafted_nodes=7, used_slots=5)
        if fake.load.request_id:
            fake.end_load()
            response.last_load.CopyFrom(fake.load)
        return response


def drafter_message(name: str, address: str = "localhost:50052") -> pool.Drafter:
    drafter = pool.Drafter(
        name=name,
        address=address,
        state=pool.DRAFTER_STATE_READY,
        draft_tokens=10,
        accepted_tokens=7,
        labels={"domain": "code"},
        accepted_per_second=120.4,
    )
    drafter.step_time.FromMilliseconds(3)
    drafter.attached_at.FromSeconds(1_700_000_000)
    drafter.model.model_id = "draft"
    return drafter
