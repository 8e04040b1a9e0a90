"""Reads a request's sampling parameters and its logit changes."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence

from draftwire.v1 import sampling_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.logits.logit_changes import MOST_BIASES, LogitChanges
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.errors import invalid_field, refused_field
from verifier_service.reading.same_names import given

_SEED_BITS = 53
"""Bits of a seed chosen by the verifier; JavaScript represents such numbers exactly."""
_MAX_BAD_WORDS = 256
_MAX_BAD_WORD_LENGTH = 256


def read_sampling(message: sampling_pb2.SamplingParams) -> SamplingParams:
    """Reads the sampling parameters. Raises ServiceError with INVALID_ARGUMENT."""
    params = SamplingParams.read(message, message.seed if message.HasField("seed") else secrets.randbits(_SEED_BITS))
    try:
        return params.validate("sampling")
    except FieldError as error:
        raise invalid_field(error.field, error.description) from error


async def read_changes(
    request: GenerateRequest,
    most_tokens: int,
    vocab_size: int,
    check_tokens: Callable[[str, Sequence[int]], None],
    spell: Callable[[Sequence[str], int], Awaitable[tuple[tuple[int, ...], ...]]],
) -> LogitChanges:
    """Reads the logit changes. Raises ServiceError.

    most_tokens: most tokens of the output. check_tokens: raises for a field with an id beyond the vocabulary. spell:
    returns the token spellings of words, given their total size in bytes.
    """
    params = request.sampling
    if len(params.logit_bias) > MOST_BIASES:
        raise invalid_field(
            "sampling.logit_bias", f"has {len(params.logit_bias)} tokens; at most {MOST_BIASES} are allowed"
        )
    bias = dict(params.logit_bias)
    _check_biased(bias, vocab_size)
    for field, ids in (("allowed_token_ids", params.allowed_token_ids), ("banned_token_ids", params.banned_token_ids)):
        if len(ids) > vocab_size:
            raise invalid_field(f"sampling.{field}", f"has {len(ids)} ids, but the vocabulary has {vocab_size} tokens")
        check_tokens(f"sampling.{field}", ids)
    if request.min_tokens > most_tokens:
        raise invalid_field("min_tokens", f"is {request.min_tokens}, but the output has at most {most_tokens} tokens")
    words = _bad_words(params.bad_words)
    changes = LogitChanges(
        **given(LogitChanges, params),
        logit_bias=bias,
        allowed_token_ids=tuple(params.allowed_token_ids),
        banned_token_ids=tuple(params.banned_token_ids),
        bad_words=await spell(words, sum(len(word.encode()) for word in words)) if words else (),
        min_tokens=request.min_tokens,
    )
    try:
        return changes.validate("sampling")
    except FieldError as error:
        raise invalid_field(error.field, error.description) from error


def _check_biased(bias: Mapping[int, float], vocab_size: int) -> None:
    """Raises ServiceError for a token beyond the vocabulary; the error names the token, which is the map's key."""
    beyond = next((token for token in bias if token >= vocab_size), None)
    if beyond is not None:
        field, description = (
            f"sampling.logit_bias[{beyond}]",
            f"is beyond the target's vocabulary of {vocab_size} tokens",
        )
        raise refused_field(ErrorReason.ERROR_REASON_TOKEN_OUT_OF_RANGE, field, description)


def _bad_words(words: Sequence[str]) -> Sequence[str]:
    if len(words) > _MAX_BAD_WORDS:
        raise invalid_field("sampling.bad_words", f"has {len(words)} words; at most {_MAX_BAD_WORDS} are allowed")
    for index, word in enumerate(words):
        if not 1 <= len(word) <= _MAX_BAD_WORD_LENGTH:
            raise invalid_field(
                f"sampling.bad_words[{index}]",
                f"must have 1 to {_MAX_BAD_WORD_LENGTH} characters, got {len(word)}",
            )
    return words
