"""Builders of requests, shared by the synchronous and the asyncio client.

The verifier checks ranges, so that every client of the contract gets the same errors. This module checks only what
cannot be encoded: values of the wrong type (``option_types``), negative numbers in unsigned fields, unknown acceptance
rules and presets.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec

from draftwire._messages import option_types
from draftwire._messages.conversation import Conversation, conversation_message
from draftwire._messages.field_names import naming_parameters
from draftwire._messages.methods import GENERATE
from draftwire._messages.option_messages import form_message, speculation_message
from draftwire._messages.validation import (
    UINT64_END,
    duration,
    is_token_id,
    no_token_id,
    some_tokens,
    text_list,
    token_ids,
    unsigned,
)
from draftwire._types.quoting import quoted
from draftwire._types.speculation import Speculation
from draftwire.errors import invalid_field
from draftwire.v1 import sampling_pb2
from draftwire.v1 import verifier_service_pb2 as pb

Options = ParamSpec("Options")

Prompt = str | Sequence[int]
"""The text to continue, tokenized by the verifier, or its token ids, used unchanged."""


_MOST_CHOICES = 128


class Prepared(NamedTuple):
    """A request ready to be sent."""

    message: pb.GenerateRequest
    """The message; its seed is always set, so that the request can be resumed."""
    timeout: float | None
    """Timeout in seconds; None for the client's timeout."""


def _with_checked_types(
    build: Callable[Concatenate[Prompt | Conversation, Options], Prepared],
) -> Callable[Concatenate[Prompt | Conversation, Options], Prepared]:
    """Decorates a function that builds a request, to check the types of its options first."""

    @wraps(build)
    def run(prompt: Prompt | Conversation, /, *args: Options.args, **options: Options.kwargs) -> Prepared:
        return build(prompt, *args, **option_types.checked(options))

    return run


@naming_parameters(GENERATE.path)
@_with_checked_types
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
    fit_max_tokens: bool = False,
    min_tokens: int | None = None,
    ignore_eos: bool = False,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    include_stop: bool = False,
    special_tokens: bool = False,
    max_time: float | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    echo: bool = False,
    suffix: str | None = None,
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
    """Returns the request for a prompt or a conversation.

    Raises:
        InvalidFieldError: a value cannot be encoded, or a message lacks role or content.
        TokenOutOfRangeError: a token id is negative or exceeds 32 bits.
        TypeError: an option has the wrong type or does not exist; the message names it.
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
            allowed_token_ids=some_tokens("sampling.allowed_token_ids", allowed_token_ids),
            banned_token_ids=some_tokens("sampling.banned_token_ids", banned_token_ids),
            bad_words=text_list("sampling.bad_words", bad_words),
            seed=secrets.randbits(63) if seed is None else unsigned("sampling.seed", seed, UINT64_END),
        ),
        max_tokens=unsigned("max_tokens", max_tokens, least=1),
        fit_max_tokens=fit_max_tokens,
        min_tokens=unsigned("min_tokens", min_tokens),
        ignore_eos=ignore_eos,
        stop=[stop] if isinstance(stop, str) else stop,
        stop_token_ids=some_tokens("stop_token_ids", stop_token_ids),
        include_stop=include_stop,
        special_tokens=special_tokens,
        max_time=duration("max_time", max_time),
        log_probs=unsigned("log_probs", logprobs),
        prompt_log_probs=unsigned("prompt_log_probs", prompt_logprobs),
        echo=echo,
        suffix=suffix,
        structured_output=form_message(
            json_schema=json_schema,
            json_object=json_object or None,
            regex=regex,
            lark=grammar,
            ebnf=ebnf,
            choice=text_list("structured_output.choice", choice),
            jump_ahead=jump_ahead,
        ),
        speculation=speculation_message(speculation or Speculation()),
        report_rejected=report_rejected,
    )
    if prefix_cache is not None:
        request.prefix_cache = prefix_cache
    if isinstance(prompt, Conversation):
        request.messages.CopyFrom(conversation_message(prompt))
    elif isinstance(prompt, str):
        request.text = prompt
    elif isinstance(prompt, bytes | bytearray):
        raise TypeError("prompt: expected a string or a sequence of token ids, not bytes")
    else:
        request.token_ids.ids.extend(token_ids("token_ids.ids", _prompt_ids(prompt)))
        request.token_ids.SetInParent()
    return Prepared(request, timeout)


def _prompt_ids(prompt: Any) -> list[int]:
    if isinstance(prompt, Mapping) or not isinstance(prompt, Iterable):
        raise option_types.wrong_type("prompt", "a string or a sequence of token ids", prompt)
    return option_types.token_ids("prompt", prompt)


def new_request_id() -> str:
    """Returns a new id for a change, by which a service recognizes a repeated request."""
    return uuid.uuid4().hex


def batch_seeds(seed: int | Sequence[int] | None, count: int) -> list[int | None]:
    """Returns the seed of each request of a batch.

    A single int is the seed of every request, so that each result equals that of a single call with it.

    Raises:
        ValueError: the number of seeds is not the number of prompts.
    """
    if isinstance(seed, str) or not isinstance(seed, Iterable):
        return [seed] * count
    seeds: list[int | None] = list(seed)
    if len(seeds) != count:
        raise ValueError(f"seed: {len(seeds)} seeds for {count} prompts")
    return seeds


def choices(request: Prepared, number: int) -> list[Prepared]:
    """Returns the requests for several results: the i-th, counted from 0, has the seed plus i.

    Raises:
        InvalidFieldError: the number is not from 1 to 128.
        TypeError: the number is not an integer.
    """
    number = option_types.whole("n", number)
    if not 1 <= number <= _MOST_CHOICES:
        raise invalid_field("n", f"must be from 1 to {_MOST_CHOICES}, got {number}")
    requests = [request]
    for index in range(1, number):
        message = pb.GenerateRequest()
        message.CopyFrom(request.message)
        message.sampling.seed = (message.sampling.seed + index) % UINT64_END
        if message.request_id:
            message.request_id += f"-{index}"
        requests.append(Prepared(message, request.timeout))
    return requests


def _logit_bias(bias: Mapping[int, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    for token_id in bias:
        if not is_token_id(token_id):
            raise no_token_id(f"sampling.logit_bias[{quoted(token_id)}]", token_id)
    return dict(bias)
