"""Builds the requests, for the sync and the asyncio client alike.

Ranges are checked by the verifier, so that every client of the contract gets the same errors. Checked here is only
what cannot be put on the wire: negative numbers in unsigned fields, unknown acceptance rules and presets.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict, TypeVar

from draftwire.acceptance import PRESETS, RULES
from draftwire.errors import ErrorReason, FieldViolation, TokenOutOfRangeError, invalid_field
from draftwire.speculation import Acceptance, Speculation
from draftwire.v1 import sampling_pb2, speculation_pb2
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


class BatchOptions(TypedDict, total=False):
    """Keyword parameters every request of a batch shares."""

    max_tokens: int | None
    """Most tokens to generate, at least 1; default 128. None goes on to the end of the context."""
    temperature: float | None
    """Softmax temperature, finite and >= 0; default 1.0. 0 is greedy."""
    top_k: int | None
    """Keep the k most likely tokens; default: all."""
    top_p: float | None
    """Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]; default 1."""
    min_p: float | None
    """Keep tokens with at least this times the probability of the most likely one, in [0, 1]; default 0."""
    ignore_eos: bool
    """Go on past end-of-sequence tokens; default False."""
    stop: str | Iterable[str] | None
    """The output ends before the first of these strings that appears in it; default: none."""
    speculation: Speculation | None
    """What is asked of speculation; default ``Speculation()``."""
    timeout: float | None
    """Seconds the request may take in all, resumes included; default: the client's timeout."""


class GenerateOptions(BatchOptions, total=False):
    """Keyword parameters of one request."""

    seed: int | None
    """Key of the sampling noise, in [0, 2**64); default: a random one, reported in the result. The tokens are a
    function of model, prompt, sampling parameters and seed alone."""
    request_id: str | None
    """The request's name in the verifier's logs; default: the verifier chooses."""


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
    ignore_eos: bool = False,
    stop: str | Iterable[str] | None = None,
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
        sampling=_sampling(temperature, top_k, top_p, min_p, seed),
        max_tokens=unsigned("max_tokens", max_tokens),
        ignore_eos=ignore_eos,
        stop=[stop] if isinstance(stop, str) else stop,
        speculation=_speculation(speculation or Speculation()),
    )
    if isinstance(prompt, Conversation):
        request.messages.CopyFrom(_messages(prompt))
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


def _messages(conversation: Conversation) -> pb.ChatMessages:
    messages = pb.ChatMessages()
    for index, message in enumerate(conversation.messages):
        if set(message) != {"role", "content"}:
            raise invalid_field(f"messages.messages[{index}]", "expected exactly the keys role and content")
        messages.messages.add(role=message["role"], content=message["content"])
    return messages


def _sampling(
    temperature: float | None, top_k: int | None, top_p: float | None, min_p: float | None, seed: int | None
) -> sampling_pb2.SamplingParams:
    return sampling_pb2.SamplingParams(
        temperature=temperature,
        top_k=unsigned("sampling.top_k", top_k),
        top_p=top_p,
        min_p=min_p,
        seed=secrets.randbits(63) if seed is None else unsigned("sampling.seed", seed, _UINT64_END),
    )


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
