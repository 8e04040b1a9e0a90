"""Readers of streamed responses, shared by the synchronous and the asyncio client. They never block or send."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from draftwire._messages.methods import GENERATE, Method
from draftwire._messages.off_loop import is_large
from draftwire._messages.requests import Request, prompt_prefix
from draftwire._types.from_message import numbers_of, read
from draftwire._types.generation import (
    Chunk,
    FinishReason,
    Generation,
    PromptReport,
    RejectedDraft,
    TokenLogProbs,
    Usage,
    read_prompt,
)
from draftwire._types.speculation import NO_SPECULATION, SpeculationStats
from draftwire.errors import InternalError, ModelMismatchError, NumericsMismatchError
from draftwire.v1 import verifier_service_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ItemT_co = TypeVar("ItemT_co", covariant=True)

_FINISH_REASONS = {number: name for name, number in numbers_of(FinishReason, pb.FinishReason.DESCRIPTOR).items()}
_INT64_END = 1 << 63
_LEAST_TIME = 0.001
"""Time limit in seconds of a request that is resumed after its ``max_time``, so that it ends immediately."""


class Reader(Protocol[RequestT, ResponseT, ItemT_co]):
    """A stream's knowledge of its call: the requests to send, also after an interruption, and how to read responses."""

    @property
    def method(self) -> Method[RequestT, ResponseT]:
        """The RPC."""

    @property
    def finished(self) -> bool:
        """Whether no further response is expected."""

    @property
    def large(self) -> bool:
        """Whether it would hold up an event loop to make ``key`` and ``next_request``."""
        return False

    def key(self, size: int) -> bytes | None:
        """Returns the key that selects the verifier (see ``spreading``): the first ``size`` bytes of the prompt.

        None, the default, selects the verifier in use.
        """
        return None

    def next_request(self, *, resumable: bool) -> RequestT:
        """Returns the request for the next attempt, which continues after everything read so far.

        ``resumable``: whether there is another verifier to continue at.
        """

    def begin_anew(self) -> bool:
        """Forgets what was read, so that the next request is the first one again. Returns False if it cannot."""
        return False

    def read(self, response: ResponseT) -> ItemT_co | None:
        """Reads a response; returns the caller's item, if any."""


class Subscription(Reader[RequestT, ResponseT, ItemT_co]):
    """Reads a stream that never ends. After a lost connection it continues with what happens from then on."""

    finished = False

    def __init__(self, method: Method[RequestT, ResponseT], item: Callable[[ResponseT], ItemT_co], **sent: Any) -> None:
        """Starts before the first attempt. ``item`` makes the caller's item of a response. ``sent``: in the request."""
        self._method = method
        self._item = item
        self._request = method.request(**sent)

    @property
    def method(self) -> Method[RequestT, ResponseT]:
        """The RPC."""
        return self._method

    def next_request(self, *, resumable: bool) -> RequestT:
        """Returns the request, which is always the same."""
        return self._request

    def read(self, response: ResponseT) -> ItemT_co | None:
        """Returns the item of a response."""
        return self._item(response)


class GenerationReader(Reader[pb.GenerateRequest, pb.GenerateResponse, Chunk]):
    """Reads the events of one request, across all its attempts."""

    method = GENERATE

    def __init__(self, request: Request, *, may_begin_anew: bool = False) -> None:
        """Starts before the first attempt. ``may_begin_anew``: the caller gets no chunks before the result."""
        self._request = request
        self._may_begin_anew = may_begin_anew
        self._begin = time.monotonic()
        self._restarts = 0
        self._result: Generation | None = None
        self.seed: int = request.seed
        self._forget()

    def _forget(self) -> None:
        """Resets everything that was read."""
        self._resumes = 0
        self._first_token: float | None = None
        self._token_ids: list[int] = []
        self._resumed_tokens = 0
        self._texts: list[str] = []
        self._token_texts: list[str] = []
        self._text_offsets: list[int] = []
        self._logprobs: list[TokenLogProbs] = []
        self._prompt = pb.PromptReport()
        self._report: PromptReport | None = None
        self._prompt_tokens = 0
        self._model_fingerprint = ""
        self._numerics = ""
        self.left_out: list[str] = []
        self.request_id = ""
        self.prompt_token_ids: list[int] = []

    @property
    def finished(self) -> bool:
        """Whether the result is available."""
        return self._result is not None

    @property
    def large(self) -> bool:
        """Whether the request, or what was read of its output, is large."""
        return self._request.large or is_large(self._token_ids)

    @property
    def operation(self) -> str:
        """The kind of request, as named in traces."""
        return "chat" if self._request.message.HasField("messages") else "text_completion"

    def asked(self) -> dict[str, Any]:
        """Returns the request's sampling parameters as span attributes; never the prompt."""
        request, sampling = self._request.message, self._request.message.sampling
        # Span attributes have no unsigned 64-bit integers.
        values: dict[str, Any] = {"gen_ai.request.seed": self.seed if self.seed < _INT64_END else str(self.seed)}
        if request.HasField("max_tokens"):
            values["gen_ai.request.max_tokens"] = request.max_tokens
        if sampling.HasField("temperature"):
            values["gen_ai.request.temperature"] = sampling.temperature
        if sampling.HasField("top_p"):
            values["gen_ai.request.top_p"] = sampling.top_p
        if sampling.top_k:
            values["gen_ai.request.top_k"] = sampling.top_k
        return values

    @property
    def result(self) -> Generation:
        """The result.

        Raises:
            RuntimeError: the request has not ended.
        """
        if self._result is None:
            raise RuntimeError("the stream has not ended: its result arrives with the last chunk")
        return self._result

    @property
    def progress(self) -> str:
        """The request's progress in words: "after 90 tokens"."""
        if not self._prompt_tokens:
            return "before the request began"
        return f"after {len(self._token_ids)} token{'s' * (len(self._token_ids) != 1)}"

    def partial(self, finish_reason: FinishReason) -> Generation | None:
        """Returns the partial result of a failed request; None if it has not begun."""
        if not self._prompt_tokens:
            return None
        now = time.monotonic()
        return Generation(
            text="".join(self._texts),
            token_ids=list(self._token_ids),
            finish_reason=finish_reason,
            usage=Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=len(self._token_ids),
                first_token_seconds=(self._first_token or now) - self._begin,
                total_seconds=now - self._begin,
            ),
            speculation=NO_SPECULATION,
            seed=self.seed,
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            token_texts=self._token_texts,
            text_offsets=self._text_offsets,
            logprobs=self._logprobs,
            prompt=self.prompt,
            resumes=self._resumes,
        )

    @property
    def prompt(self) -> PromptReport | None:
        """The report on the prompt so far, if any."""
        if self._report is None and self._prompt.token_ids:
            self._report = read_prompt(self._prompt)
        return self._report

    def key(self, size: int) -> bytes | None:
        """Returns the first bytes of the prompt; None if drafters are named, which other verifiers may not have."""
        asked = self._request.message.speculation
        return None if asked.drafter or asked.drafter_names else prompt_prefix(self._request.message, size)

    def next_request(self, *, resumable: bool) -> pb.GenerateRequest:
        """Returns the request, to be resumed after the tokens read so far."""
        self._resumed_tokens = len(self._token_ids)
        request = self._request.attempt()
        request.resumable = resumable
        if not self.prompt_token_ids:
            self.prompt_token_ids = list(request.token_ids.ids)
        if len(self._prompt.token_ids) < self._prompt_tokens:
            self._prompt, self._report = pb.PromptReport(), None  # the report was interrupted
        elif self._prompt.token_ids:  # the report is complete and is not needed again
            request.ClearField("echo")
            request.ClearField("prompt_log_probs")
        if request.HasField("max_time"):
            left = request.max_time.ToTimedelta().total_seconds() - (time.monotonic() - self._begin)
            request.max_time.FromTimedelta(timedelta(seconds=max(left, _LEAST_TIME)))
        if not self._token_ids:
            return request
        request.request_id = self.request_id
        request.token_ids.ids[:] = self.prompt_token_ids  # also for a text prompt, to avoid a second tokenization
        request.resume_token_ids[:] = self._token_ids
        request.speculation.ClearField("drafter")  # which the next verifier may not have; it changes no token
        request.speculation.ClearField("drafter_names")
        return request

    def begin_anew(self) -> bool:
        """Forgets what was read, so that the next request is the first one again. Returns False if chunks were already
        handed out."""
        if self._may_begin_anew:
            self._forget()
            self._restarts += 1
        return self._may_begin_anew

    def read(self, response: pb.GenerateResponse) -> Chunk | None:
        """Reads an event; returns its chunk, if any."""
        event = response.WhichOneof("event")
        if event == "started":
            self._read_started(response.started)
            return None
        if event == "chunk":
            return self._read_chunk(response.chunk)
        if event == "finished":
            return self._read_finished(response.finished)
        if event == "prompt":
            text = self._prompt.text + response.prompt.text
            self._prompt.MergeFrom(response.prompt)
            self._prompt.text, self._report = text, None
        return None  # also for an event newer than this SDK

    def _read_started(self, started: pb.GenerateStarted) -> None:
        self.request_id = started.request_id
        self._prompt_tokens = started.prompt_tokens
        if self._resumed_tokens:
            self._check_model(started.model_fingerprint)
            self._check_numerics(started.numerics)
            self._resumes += 1
        self._numerics = started.numerics
        self.left_out = list(started.left_out)
        self._model_fingerprint = started.model_fingerprint or self._model_fingerprint
        if started.seed != self.seed:
            raise InternalError(f"the verifier uses the seed {started.seed} instead of {self.seed}")
        if started.prompt_token_ids:
            self.prompt_token_ids = list(started.prompt_token_ids)

    def _check_model(self, fingerprint: str) -> None:
        """Refuses to continue with another model, unless one of the verifiers does not report its model."""
        if fingerprint and self._model_fingerprint and fingerprint != self._model_fingerprint:
            raise ModelMismatchError(
                f"request {self.request_id} cannot continue here: the target model differs from the one that began "
                f"it (fingerprint {fingerprint[:12]}, was {self._model_fingerprint[:12]})"
            )

    def _check_numerics(self, numerics: str) -> None:
        """Refuses to continue with other numerics; unreported numerics equal only each other."""
        if numerics != self._numerics:
            raise NumericsMismatchError(
                f"the numerics of the target model ({numerics[:12] or 'not reported'}) differ from those that it began "
                f"with ({self._numerics[:12] or 'not reported'}), so its text might differ from here on; the "
                "verifiers' ModelInfo.numerics_description describes them",
                metadata={"numerics": numerics, "began_with": self._numerics},
            )

    def _read_chunk(self, message: pb.GenerateChunk) -> Chunk:
        if self._first_token is None:
            self._first_token = time.monotonic()
        self._token_ids += message.token_ids
        self._texts.append(message.text)
        self._token_texts += message.token_texts
        self._text_offsets += message.text_offsets
        names = (None, *message.drafters)
        chunk = read(
            Chunk,
            message,
            sources=[names[source] if source < len(names) else None for source in message.sources],
            rejected=[
                read(RejectedDraft, draft, drafter=name)
                for draft in message.rejected
                if draft.source < len(names) and (name := names[draft.source]) is not None
            ],
        )
        self._logprobs += chunk.logprobs
        return chunk

    def _read_finished(self, message: pb.GenerateFinished) -> Chunk | None:
        self._texts.append(message.text)
        self._result = Generation(
            text="".join(self._texts),
            token_ids=list(self._token_ids),
            finish_reason=_FINISH_REASONS.get(message.finish_reason, "stop"),
            usage=self._usage(message.usage),
            speculation=read(SpeculationStats, message.speculation, tokens=len(self._token_ids) - self._resumed_tokens),
            seed=self.seed,
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            stop=message.stop or None,
            stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
            token_texts=self._token_texts,
            text_offsets=self._text_offsets,
            logprobs=self._logprobs,
            prompt=self.prompt,
            resumes=self._resumes,
            restarts=self._restarts,
            left_out=self.left_out,
        )
        return Chunk(text=message.text) if message.text else None

    def _usage(self, message: pb.Usage) -> Usage:
        first, total = message.first_token_seconds, message.total_seconds
        if self._resumed_tokens or self._restarts:  # the verifier measured only the last attempt
            now = time.monotonic()
            first, total = (self._first_token or now) - self._begin, now - self._begin
        return read(Usage, message, first_token_seconds=first, total_seconds=total)
