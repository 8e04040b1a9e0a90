"""Reads a GenerateRequest: checks every field and settles what the request left open."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from draftwire._types.quoting import shortened
from draftwire.v1 import speculation_pb2, verifier_service_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.speculation_pb2 import DraftPlanning
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.logits.grammar_form import GrammarForm
from draftwire_core.engine.logits.processors import editors_of
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.announcing.drafter_fields import read_labels
from draftwire_core.runtime.errors import invalid_field, refused_field
from draftwire_core.runtime.rpc.request_id import given_request_id
from verifier_service.reading.acceptance import read_acceptance
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.reading.same_names import switches
from verifier_service.reading.sampling import read_changes, read_sampling
from verifier_service.reading.structured_output import StructuredOutputReader, reads_ahead
from verifier_service.reading.telling import read_log_probs, read_max_time, read_stop_tokens
from verifier_service.reading.text import TextReader
from verifier_service.reading.text_pool import TextPool

_MAX_STOPS = 16
_MAX_STOP_LENGTH = 256
_MAX_DRAFTER_NAMES = 16
_MAX_NAME_LENGTH = 1024
"""Most characters of a drafter's name."""
_LOOKED_AT = 1024
"""Number of tokens at the end of a prompt from which a preset is chosen."""


class RequestReader:
    """Reads requests against the target's limits. Every fault is a ServiceError that names the field."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        context_length: int,
        kv_tokens: int,
        eos_token_ids: Iterable[int] = (),
        *,
        pool: TextPool,
        adapters: Collection[str] = (),
    ):
        """kv_tokens: most tokens of one request that fit into the KV cache and the limit of a peer. pool: threads that
        tokenize texts. adapters: names of the LoRA adapters that are served."""
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._forms = StructuredOutputReader(tokenizer, vocab_size, self._eos_token_ids)
        self._numbers = itertools.count(1)
        """Sequence ids; each is used once."""
        self._vocab_size = vocab_size
        self._longest = min(context_length, kv_tokens)
        self._bound_by = (
            f"the target's context of {context_length} tokens"
            if context_length <= kv_tokens
            else f"the {kv_tokens} tokens that the KV cache and the limits of the verifier leave for one request"
        )
        self._adapters = adapters
        self.texts = TextReader(tokenizer, self._longest, self._bound_by, pool)

    async def read(
        self, request: verifier_service_pb2.GenerateRequest, request_id: str = "", peer: str = ""
    ) -> GenerateOrder:
        """Checks and completes a request. Raises ServiceError with INVALID_ARGUMENT, or AT_CAPACITY if too many texts
        are being read.

        request_id: its id, if already settled. peer: its caller.
        """
        request_id = request_id or given_request_id(request.request_id, ()) or f"req-{secrets.token_hex(6)}"
        # Overlong requests are refused before anything in them is copied, compared or tokenized.
        self._check_lengths(request)
        resumed = list(request.resume_token_ids)
        self.check_tokens("resume_token_ids", resumed)
        speculation = request.speculation
        most = speculation.max_draft_tokens if speculation.HasField("max_draft_tokens") else None
        enabled = speculation.enabled if speculation.HasField("enabled") else True
        speculate = enabled and most != 0
        if speculation.planning not in DraftPlanning.values():
            raise invalid_field(
                "speculation.planning", f"{speculation.planning} is not a planning that this verifier knows"
            )
        sampling = read_sampling(request.sampling)
        stops, drafter_names = _stops(request.stop), _drafter_names(speculation)
        prompt = await self._prompt(request, peer)
        max_length = self._max_length(request, len(prompt))
        settled = await read_acceptance(
            speculation,
            matters=speculate and not sampling.greedy,
            prompt=lambda: self._end_of(prompt, peer),
        )
        labels, drafters = read_labels("speculation.labels", speculation.labels), _drafters(speculation)
        prediction = await self._prediction(speculation.prediction, peer)
        stop_token_ids = read_stop_tokens(request, self.check_tokens)
        max_time = read_max_time(request)
        log_probs = read_log_probs(request, "log_probs")
        prompt_log_probs = read_log_probs(request, "prompt_log_probs")
        changes = await read_changes(
            request,
            max_length - len(prompt),
            self._vocab_size,
            self.check_tokens,
            lambda words, size: self.texts.run(partial(self._spellings, words), size, peer),
        )
        form: GrammarForm | None = None
        if request.HasField("structured_output"):  # last, because it may be slow
            form = await self._forms.read(request.structured_output, resumed, ignore_eos=request.ignore_eos, peer=peer)
        ends = stop_token_ids | (frozenset() if request.ignore_eos else self._eos_token_ids)
        editors = editors_of(changes, prompt, resumed, ends)
        prefix_cache = request.prefix_cache if request.HasField("prefix_cache") else True
        spec = SequenceSpec(
            sequence_id=next(self._numbers),
            tokens=[*prompt, *resumed],
            max_length=max_length,
            sampling=sampling,
            eos_token_ids=ends,
            max_draft_tokens=most,
            always_draft=speculate and speculation.planning == DraftPlanning.DRAFT_PLANNING_ALWAYS,
            acceptance=settled.acceptance,
            editors=editors if form is None else (*editors, form),
            logprobs=log_probs,
            prompt_logprobs=prompt_log_probs,
            takes_prefix=prefix_cache,
            leaves_prefix=prefix_cache,
            form=form,
            report_rejected=request.report_rejected,
            private=request.private,
        )
        return GenerateOrder(
            request_id=request_id,
            spec=spec,
            prompt_length=len(prompt),
            prompt_was_text=request.WhichOneof("prompt") != "token_ids",
            is_answer=request.HasField("messages") and not request.messages.continue_final_message,
            stops=stops,
            speculate=speculate,
            drafter_names=drafter_names,
            labels=labels,
            drafters=drafters,
            prediction=prediction,
            preset=settled.preset,
            dynamic_temperature=settled.dynamic_temperature,
            stop_token_ids=stop_token_ids,
            changes=changes,
            max_time=max_time,
            jump_ahead=form is not None and speculate and reads_ahead(request.structured_output),
            left_out=() if form is None else form.left_out,
            **switches(GenerateOrder, request),
        )

    def prepare(self) -> None:
        """Makes what takes long, and would delay others if a request made it."""
        self._forms.prepare()

    def close(self) -> None:
        """Ends the threads that compile output forms and read texts."""
        self._forms.close()
        self.texts.close()

    def check_tokens(self, field: str, token_ids: Sequence[int]) -> None:
        """Raises ServiceError if an id is beyond the vocabulary."""
        if token_ids and max(token_ids) >= self._vocab_size:
            index = next(i for i, token in enumerate(token_ids) if token >= self._vocab_size)
            raise refused_field(
                ErrorReason.ERROR_REASON_TOKEN_OUT_OF_RANGE,
                f"{field}[{index}]",
                f"is {token_ids[index]}, but the target's vocabulary has {self._vocab_size} tokens",
            )

    def _check_lengths(self, request: verifier_service_pb2.GenerateRequest) -> None:
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise refused_field(ErrorReason.ERROR_REASON_EMPTY_PROMPT, "prompt", "is missing")
        self._check_suffix(request)
        if request.adapter and request.adapter not in self._adapters:
            served = ", ".join(self._adapters) or "none"
            raise invalid_field("adapter", f"is {shortened(request.adapter)!r}, but the adapters here are: {served}")
        if kind == "token_ids":
            self._max_length(request, len(request.token_ids.ids))
        elif kind == "text":
            self.texts.check_text(kind, request.text)
        else:
            self.texts.check_chat(request.messages)
        self.texts.check_number("resume_token_ids", request.resume_token_ids)
        prediction = request.speculation.prediction
        if prediction.text and prediction.token_ids:
            raise invalid_field("speculation.prediction", "must not have both text and token_ids")
        self.texts.check_text("speculation.prediction.text", prediction.text)
        self._check_prediction(len(prediction.token_ids))

    async def _prompt(self, request: verifier_service_pb2.GenerateRequest, peer: str) -> list[int]:
        kind = request.WhichOneof("prompt")
        if kind == "token_ids":
            prompt = list(request.token_ids.ids)
            self.check_tokens("token_ids.ids", prompt)
        elif kind == "text":
            prompt = await self.texts.read_text(kind, self._text(request), peer)
        else:
            prompt = await self.texts.read_chat(request.messages, peer)
        if not prompt:
            raise refused_field(
                ErrorReason.ERROR_REASON_EMPTY_PROMPT, kind or "prompt", "has no tokens: give one at least"
            )
        most = max(prompt)
        if most >= self._vocab_size:  # some tokenizers have added tokens that their models lack
            name = shortened(self._tokenizer.texts.of(most).text)
            raise refused_field(
                ErrorReason.ERROR_REASON_TOKEN_OUT_OF_RANGE,
                kind or "prompt",
                f"has the token {name!r} with the id {most}, but the target's vocabulary has {self._vocab_size} tokens",
            )
        return prompt

    def _check_suffix(self, request: verifier_service_pb2.GenerateRequest) -> None:
        if not request.HasField("suffix"):
            return
        self.texts.check_text("suffix", request.suffix)
        if request.WhichOneof("prompt") == "messages":
            raise invalid_field("suffix", "cannot be combined with messages")
        if request.WhichOneof("prompt") == "text" and self._tokenizer.infill is None:
            raise invalid_field("suffix", "the target's tokenizer has no tokens for filling in the middle of a text")

    def _text(self, request: verifier_service_pb2.GenerateRequest) -> str:
        infill = self._tokenizer.infill if request.HasField("suffix") else None
        return str(request.text) if infill is None else infill.text(request.text, request.suffix)

    async def _end_of(self, prompt: Sequence[int], peer: str) -> str:
        end = prompt[-_LOOKED_AT:]
        return await self.texts.run(partial(self._tokenizer.decode, end), len(end), peer)

    async def _prediction(self, prediction: speculation_pb2.Prediction, peer: str) -> list[int]:
        self.check_tokens("speculation.prediction.token_ids", prediction.token_ids)
        tokens = list(prediction.token_ids)
        if prediction.text:
            field = "speculation.prediction.text"
            tokens = await self.texts.read_text(field, prediction.text, peer, add_special_tokens=False)
            self._check_prediction(len(tokens))
        return tokens

    def _check_prediction(self, tokens: int) -> None:
        if tokens > self._longest:
            raise invalid_field(
                "speculation.prediction", f"has {tokens} tokens, but an output is limited to {self._bound_by}"
            )

    def _spellings(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Returns the tokens of each word, with and without a leading space."""
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        line = encode("\n")
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip(" ") or word
            other = encode(f" {bare}")
            # A space that is put before each text is before the first spelling; behind a line break there is none.
            if self._tokenizer.takes_space and (inside := encode(f"\n{bare}"))[: len(line)] == line:
                other = inside[len(line) :]
            for spelled in map(tuple, (encode(bare), other)):
                if spelled and max(spelled) < self._vocab_size:  # the target has no other tokens
                    found[spelled] = None
        return tuple(found)

    def _max_length(self, request: verifier_service_pb2.GenerateRequest, prompt_length: int) -> int:
        if prompt_length >= self._longest:
            raise refused_field(
                ErrorReason.ERROR_REASON_CONTEXT_EXCEEDED,
                request.WhichOneof("prompt") or "prompt",
                f"has {prompt_length} tokens, which leaves no room within {self._bound_by}",
                max_sequence_tokens=str(self._longest),
            )
        if not request.HasField("max_tokens"):
            return self._longest
        if request.max_tokens < 1:
            raise invalid_field("max_tokens", f"must be at least 1, got {request.max_tokens}")
        if prompt_length + request.max_tokens > self._longest:
            if request.fit_max_tokens:
                return self._longest
            raise refused_field(
                ErrorReason.ERROR_REASON_CONTEXT_EXCEEDED,
                "max_tokens",
                f"is {request.max_tokens}, which with a prompt of {prompt_length} tokens exceeds {self._bound_by}",
                max_sequence_tokens=str(self._longest),
            )
        return prompt_length + request.max_tokens


def _drafters(speculation: speculation_pb2.SpeculationOptions) -> int | None:
    if not speculation.HasField("drafters"):
        return None
    if speculation.drafters < 1:
        raise invalid_field("speculation.drafters", f"must be at least 1, got {speculation.drafters}")
    return speculation.drafters


def _drafter_names(speculation: speculation_pb2.SpeculationOptions) -> tuple[str, ...]:
    number = len(speculation.drafter_names)
    if speculation.HasField("drafter"):
        if number:
            raise invalid_field("speculation.drafter_names", "cannot be combined with speculation.drafter")
        return (_drafter_name("speculation.drafter", speculation.drafter),)
    if number > _MAX_DRAFTER_NAMES:
        raise invalid_field(
            "speculation.drafter_names", f"has {number} names; at most {_MAX_DRAFTER_NAMES} are allowed"
        )
    names = tuple(
        _drafter_name(f"speculation.drafter_names[{index}]", name)
        for index, name in enumerate(speculation.drafter_names)
    )
    if len(set(names)) < number:
        raise invalid_field("speculation.drafter_names", "has a name twice")
    return names


def _drafter_name(field: str, name: str) -> str:
    if len(name) > _MAX_NAME_LENGTH:
        raise invalid_field(field, f"has {len(name)} characters; a drafter's name has at most {_MAX_NAME_LENGTH}")
    return name


def _stops(stops: Sequence[str]) -> tuple[str, ...]:
    if len(stops) > _MAX_STOPS:
        raise invalid_field("stop", f"has {len(stops)} strings; at most {_MAX_STOPS} are allowed")
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= _MAX_STOP_LENGTH:
            raise invalid_field(f"stop[{index}]", f"must have 1 to {_MAX_STOP_LENGTH} characters, got {len(stop)}")
    return tuple(stops)
