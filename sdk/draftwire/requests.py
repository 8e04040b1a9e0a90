"""Builds the requests, for the sync and the asyncio client alike.

Ranges are checked by the verifier, so that every client of the contract gets the same errors. Checked here is only
what cannot be put on the wire: negative numbers in unsigned fields, unknown acceptance rules and presets.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from draftwire.acceptance import PRESETS, RULES
from draftwire.errors import ErrorReason, FieldViolation, TokenOutOfRangeError, invalid_field
from draftwire.speculation import Acceptance, Speculation
from draftwire.v1 import sampling_pb2, speculation_pb2, structured_output_pb2
from draftwire.v1 import verifier_service_pb2 as pb

NameT = TypeVar("NameT")
NumberT = TypeVar("NumberT")

Prompt = str | Sequence[int]
"""What to continue: text, tokenized by the verifier, or token ids, taken as they are."""

Messages = Iterable[Mapping[str, str]]
"""A conversation, oldest message first: mappings with ``role`` and ``content``."""


class Conversation(NamedTuple):
    """Marks messages as a prompt."""

    messages: Messages


_UINT32_END, _UINT64_END = 1 << 32, 1 << 64
_LONGEST_TIME = 366 * 86400
_MOST_CHOICES = 128


class Prepared(NamedTuple):
    """A request that is ready to be sent."""

    message: pb.GenerateRequest
    """The message; its seed is always set, so that the request can be resumed."""
    timeout: float | None
    """Seconds it may take; None for the client's timeout."""


def prepare(
    prompt: Prompt | Conversation,
    *,
    max_tokens: int | None = 128,
    temperature: float | None = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    allowed_token_ids: Iterable[int] | None = None,
    banned_token_ids: Iterable[int] | None = None,
    bad_words: Iterable[str] | None = None,
    min_tokens: int | None = None,
    ignore_eos: bool = False,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    include_stop: bool = False,
    max_time: float | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    echo: bool = False,
    json_schema: str | Mapping[str, Any] | None = None,
    json_object: bool = False,
    regex: str | None = None,
    grammar: str | None = None,
    ebnf: str | None = None,
    choice: Iterable[str] | None = None,
    jump_ahead: bool | None = None,
    prefix_cache: bool | None = None,
    report_rejected: bool = False,
    speculation: Speculation | None = None,
    seed: int | None = None,
    request_id: str | None = None,
    timeout: float | None = None,
) -> Prepared:
    """Return the request for a prompt, or for a conversation given as messages.

    Raises:
        InvalidFieldError: a value that the wire cannot carry, or a message without role and content.
        TokenOutOfRangeError: a token id below 0 or beyond 32 bits.
        TypeError: a value of the wrong type.
    """
    request = pb.GenerateRequest(
        request_id=request_id or "",
        sampling=sampling_pb2.SamplingParams(
            temperature=temperature,
            top_k=unsigned("sampling.top_k", top_k),
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=_logit_bias(logit_bias),
            allowed_token_ids=_some_tokens("sampling.allowed_token_ids", allowed_token_ids),
            banned_token_ids=_some_tokens("sampling.banned_token_ids", banned_token_ids),
            bad_words=_texts("sampling.bad_words", bad_words),
            seed=secrets.randbits(63) if seed is None else unsigned("sampling.seed", seed, _UINT64_END),
        ),
        max_tokens=unsigned("max_tokens", max_tokens),
        min_tokens=unsigned("min_tokens", min_tokens),
        ignore_eos=ignore_eos,
        stop=[stop] if isinstance(stop, str) else stop,
        stop_token_ids=_some_tokens("stop_token_ids", stop_token_ids),
        include_stop=include_stop,
        max_time=_duration("max_time", max_time),
        log_probs=unsigned("log_probs", logprobs),
        prompt_log_probs=unsigned("prompt_log_probs", prompt_logprobs),
        echo=echo,
        structured_output=_structured_output(
            json_schema=json_schema,
            json_object=json_object or None,
            regex=regex,
            lark=grammar,
            ebnf=ebnf,
            choice=_texts("structured_output.choice", choice),
            jump_ahead=jump_ahead,
        ),
        speculation=_speculation(speculation or Speculation()),
        report_rejected=report_rejected,
    )
    if prefix_cache is not None:
        request.prefix_cache = prefix_cache
    if isinstance(prompt, Conversation):
        request.messages.CopyFrom(message_list(prompt))
    elif isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, bytes | bytearray):
        raise TypeError("prompt: expected str or a sequence of token ids, not bytes")
    else:
        request.token_ids.ids.extend(token_ids("token_ids.ids", prompt))
        request.token_ids.SetInParent()
    return Prepared(request, timeout)


def token_ids(field: str, ids: Iterable[int]) -> list[int]:
    """Return token ids that fit the wire.

    Raises:
        TokenOutOfRangeError: an id below 0 or beyond 32 bits.
    """
    ids = list(ids)
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < _UINT32_END:
            violation = FieldViolation(f"{field}[{index}]", f"{token_id} is no token id")
            raise TokenOutOfRangeError(
                f"{violation.field}: {violation.description}",
                reason=ErrorReason.TOKEN_OUT_OF_RANGE,
                field_violations=(violation,),
            )
    return ids


def batch_seeds(seed: int | Sequence[int] | None, count: int) -> list[int | None]:
    """Return the seed of each request of a batch.

    One int is the seed of every request, so that each gives what it gives alone with that seed.

    Raises:
        ValueError: a list whose length is not the number of prompts.
    """
    if seed is None or isinstance(seed, int):
        return [seed] * count
    if len(seed) != count:
        raise ValueError(f"seed: {len(seed)} seeds for {count} prompts")
    return list(seed)


def message_list(conversation: Conversation) -> pb.ChatMessages:
    """Return the messages of a conversation.

    Raises:
        InvalidFieldError: one of them has not exactly a role and content.
    """
    messages = pb.ChatMessages()
    for index, message in enumerate(conversation.messages):
        if set(message) != {"role", "content"}:
            raise invalid_field(f"messages.messages[{index}]", "expected exactly the keys role and content")
        messages.messages.add(role=message["role"], content=message["content"])
    return messages


def choices(request: Prepared, number: int) -> list[Prepared]:
    """Return the requests for several results: the i-th, counted from 0, has the seed plus i.

    Raises:
        InvalidFieldError: none, or too many.
    """
    if not 1 <= number <= _MOST_CHOICES:
        raise invalid_field("n", f"must be from 1 to {_MOST_CHOICES}, got {number}")
    requests = [request]
    for index in range(1, number):
        message = pb.GenerateRequest()
        message.CopyFrom(request.message)
        message.sampling.seed = (message.sampling.seed + index) % _UINT64_END
        if message.request_id:
            message.request_id += f"-{index}"
        requests.append(Prepared(message, request.timeout))
    return requests


def _logit_bias(bias: Mapping[int, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    token_ids("sampling.logit_bias", bias)
    return dict(bias)


def _some_tokens(field: str, ids: Iterable[int] | None) -> list[int] | None:
    return None if ids is None else token_ids(field, ids)


def _texts(field: str, texts: Iterable[str] | None) -> list[str] | None:
    if isinstance(texts, str):
        raise invalid_field(field, f"expected a list of strings, got {texts!r}")
    return None if texts is None else list(texts)


def _duration(field: str, seconds: float | None) -> timedelta | None:
    if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= _LONGEST_TIME):
        raise invalid_field(field, f"must be above 0 and at most {_LONGEST_TIME} seconds, got {seconds}")
    return None if seconds is None else timedelta(seconds=seconds)


def _structured_output(
    *,
    json_schema: str | Mapping[str, Any] | None,
    choice: list[str] | None,
    jump_ahead: bool | None,
    **simple: str | bool | None,
) -> structured_output_pb2.StructuredOutput | None:
    """What is asked of the output's form, None if nothing is."""
    forms = {name: form for name, form in simple.items() if form is not None}
    if json_schema is not None:
        forms["json_schema"] = json_schema if isinstance(json_schema, str) else json.dumps(json_schema)
    if len(forms) + (choice is not None) > 1:
        names = [*forms, *(["choice"] if choice is not None else [])]
        raise invalid_field("structured_output", f"has more than one form: {', '.join(sorted(names))}")
    if not forms and choice is None:
        return None
    message = structured_output_pb2.StructuredOutput()
    if jump_ahead is not None:
        message.jump_ahead = jump_ahead
    if choice is not None:
        message.choice.texts.extend(choice)
        message.choice.SetInParent()
    for name, form in forms.items():
        setattr(message, name, form)
    return message


def _speculation(speculation: Speculation) -> speculation_pb2.SpeculationOptions:
    number, names = _drafters(speculation.drafters)
    default: Acceptance | None = "coupled" if speculation.preset is None else None  # a preset stands for its rule
    return speculation_pb2.SpeculationOptions(
        enabled=speculation.enabled,
        drafter=speculation.drafter,
        max_draft_tokens=unsigned("speculation.max_draft_tokens", speculation.max_draft_tokens),
        acceptance=_named("speculation.acceptance", RULES, speculation.acceptance or default),
        labels=speculation.labels,
        drafters=unsigned("speculation.drafters", number),
        drafter_names=names,
        prediction=_prediction(speculation.prediction),
        preset=_named("speculation.preset", PRESETS, speculation.preset),
        threshold=speculation.threshold,
        posterior_threshold=speculation.posterior_threshold,
        posterior_alpha=speculation.posterior_alpha,
        dynamic_temperature=speculation.dynamic_temperature,
    )


def _named(field: str, known: Mapping[NameT, NumberT], name: NameT | None) -> NumberT | None:
    """What stands for a name."""
    if name is not None and name not in known:
        raise invalid_field(field, f"{name!r} is unknown; there are {', '.join(map(repr, known))}")
    return None if name is None else known[name]


def _drafters(drafters: int | Sequence[str] | None) -> tuple[int | None, list[str]]:
    """How many drafters, or which."""
    if isinstance(drafters, str):
        raise invalid_field("speculation.drafters", f"expected a number or a list of names, got {drafters!r}")
    return (drafters, []) if drafters is None or isinstance(drafters, int) else (None, list(drafters))


def _prediction(prediction: str | Sequence[int] | None) -> speculation_pb2.Prediction | None:
    if prediction is None:
        return None
    if isinstance(prediction, str):
        return speculation_pb2.Prediction(text=prediction)
    return speculation_pb2.Prediction(token_ids=token_ids("speculation.prediction.token_ids", prediction))


def unsigned(field: str, value: int | None, end: int = _UINT32_END) -> int | None:
    """Return a number that fits the wire.

    Raises:
        InvalidFieldError: it does not.
    """
    if value is not None and not 0 <= value < end:
        raise invalid_field(field, f"must be in [0, {end}), not {value}")
    return value
