"""The keyword parameters of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from draftwire._types.speculation import Speculation


class BatchOptions(TypedDict, total=False):
    """Keyword parameters shared by the requests of a batch."""

    max_tokens: int | None
    """Most tokens to generate, at least 1; default 128. None continues to the end of the context."""
    fit_max_tokens: bool
    """Lower ``max_tokens`` to what the context leaves after the prompt, instead of refusing it; default False."""
    temperature: float | None
    """Softmax temperature, finite and >= 0; default 1.0. 0 is greedy."""
    top_k: int | None
    """Keep the k most likely tokens; default: all."""
    top_p: float | None
    """Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]; default 1."""
    min_p: float | None
    """Keep tokens with at least this times the probability of the most likely one, in [0, 1]; default 0."""
    typical_p: float | None
    """Keep the tokens whose surprisal is closest to the entropy until their probability reaches this, in (0, 1];
    default 1. (Locally typical sampling, Meister et al., arXiv 2202.00666.)"""
    repetition_penalty: float | None
    """For tokens in prompt or output, divides positive logits and multiplies negative ones; above 0, default 1."""
    presence_penalty: float | None
    """Subtracted from the logits of tokens in the output, in [-2, 2]; default 0."""
    frequency_penalty: float | None
    """Subtracted from a token's logit once per occurrence in the output, in [-2, 2]; default 0."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of tokens, by id, in [-100, 100]; default: none."""
    allowed_token_ids: Iterable[int] | None
    """The only tokens allowed in the output; default: all."""
    banned_token_ids: Iterable[int] | None
    """Tokens not allowed in the output; default: none."""
    bad_words: Iterable[str] | None
    """Words not allowed in the output; default: none."""
    min_tokens: int | None
    """Fewest tokens to generate; nothing ends the output earlier. Default 0."""
    ignore_eos: bool
    """Continue past end-of-sequence tokens; default False."""
    stop: str | Iterable[str] | None
    """The output ends before the first occurrence of any of these strings; default: none."""
    stop_token_ids: Iterable[int] | None
    """The output ends with the first occurrence of any of these tokens; default: none."""
    include_stop: bool
    """Keep the stop string, or the text of the stop token, that ended the output in the text; default False."""
    special_tokens: bool
    """Keep special tokens in the text, by their names, except one that ends the output; default False."""
    max_time: float | None
    """Seconds after which the request ends with its output so far and the finish reason ``"deadline"``; it may run one
    step longer. Default: no limit. ``timeout`` raises an error instead."""
    logprobs: int | None
    """Report the log-probability of each token, and of this many of the likeliest at its position, from 0 to 64;
    default: no report. Taken from the softmax of the target's own logits, at temperature 1, before penalties and
    bias."""
    prompt_logprobs: int | None
    """Report log-probabilities of the prompt's tokens in ``Generation.prompt``, as ``logprobs`` does; default: no
    report."""
    echo: bool
    """Report the prompt's text in ``Generation.prompt``; default False."""
    suffix: str | None
    """The text after the output, which goes between the prompt, a text, and this one; default: none. Refused if the
    target's tokenizer has no tokens for filling in the middle."""
    json_schema: str | Mapping[str, Any] | None
    """Constrain the output to a JSON value that is valid under this JSON schema; default: any text. At most one of
    json_schema, json_object, regex, grammar, ebnf and choice."""
    json_object: bool
    """Constrain the output to a JSON object; default False."""
    regex: str | None
    """Constrain the output to a full match of this regular expression."""
    grammar: str | None
    """Constrain the output to this grammar, in Lark's notation."""
    ebnf: str | None
    """Constrain the output to this grammar, in GBNF, the notation of llama.cpp."""
    choice: Iterable[str] | None
    """Constrain the output to one of these texts."""
    jump_ahead: bool | None
    """Whether the engine itself proposes tokens that the constraint leaves no choice about; default True. Does not
    affect the output."""
    prefix_cache: bool | None
    """Whether the beginning of the prompt may be read from and stored in the verifier's prefix cache; default True.
    Does not affect the output."""
    report_rejected: bool
    """Report draft tokens that were verified and rejected, in ``Chunk.rejected``; default False."""
    speculation: Speculation | None
    """Speculation options; default ``Speculation()``."""
    timeout: float | None
    """Total seconds the request may take, including resumes; default: the client's timeout."""


class GenerateOptions(BatchOptions, total=False):
    """Keyword parameters of one request."""

    seed: int | None
    """Seed of the sampling noise, in [0, 2**64); default: a random one, reported in the result. The tokens depend only
    on model, prompt, sampling parameters and seed."""
    request_id: str | None
    """The request's id in the verifier's logs; default: chosen by the verifier."""
