"""The keyword parameters of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from draftwire._types.speculation import Speculation


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
    typical_p: float | None
    """Keep the tokens whose surprise is closest to the entropy until their probability reaches this, in (0, 1];
    default 1. (Locally typical sampling, Meister et al., arXiv 2202.00666.)"""
    repetition_penalty: float | None
    """Divides the logits above 0, and multiplies those below, of tokens in prompt or output; above 0, default 1."""
    presence_penalty: float | None
    """Subtracted from the logits of tokens in the output, in [-2, 2]; default 0."""
    frequency_penalty: float | None
    """Subtracted from a token's logit once for each time it is in the output, in [-2, 2]; default 0."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of tokens, by id, in [-100, 100]; default: none."""
    allowed_token_ids: Iterable[int] | None
    """The only tokens that may come; default: all."""
    banned_token_ids: Iterable[int] | None
    """Tokens that must not come; default: none."""
    bad_words: Iterable[str] | None
    """Words that must not come in the output; default: none."""
    min_tokens: int | None
    """Fewest tokens to generate: nothing ends the output before; default 0."""
    ignore_eos: bool
    """Go on past end-of-sequence tokens; default False."""
    stop: str | Iterable[str] | None
    """The output ends before the first of these strings that appears in it; default: none."""
    stop_token_ids: Iterable[int] | None
    """The output ends with the first of these tokens; default: none."""
    include_stop: bool
    """Keep in the text the stop string, or the text of the token of stop_token_ids, that ended it; default False."""
    max_time: float | None
    """Seconds after which the request ends with what it has, with the finish reason ``"deadline"``; it may take a step
    longer. Default: no limit. See ``timeout`` for one that is an error."""
    logprobs: int | None
    """Report the log-probability of each token, and of so many of the likeliest at its position, from 0 to 64; default:
    none. By the softmax of the target's own logits, at temperature 1 and before penalties and bias."""
    prompt_logprobs: int | None
    """The same for the tokens of the prompt; default: none. See ``Generation.prompt``."""
    echo: bool
    """Report the prompt's text, too; default False. See ``Generation.prompt``."""
    json_schema: str | Mapping[str, Any] | None
    """The output is a JSON value that this JSON schema allows; default: any text. At most one of json_schema,
    json_object, regex, grammar, ebnf and choice."""
    json_object: bool
    """The output is a JSON object; default False."""
    regex: str | None
    """This regular expression matches the output as a whole."""
    grammar: str | None
    """The output is a text of this grammar, in Lark's notation."""
    ebnf: str | None
    """The output is a text of this grammar, in GBNF, the notation of llama.cpp."""
    choice: Iterable[str] | None
    """The output is one of these texts."""
    jump_ahead: bool | None
    """Whether the engine proposes by itself what the output's form leaves no choice about; default True. It changes no
    token."""
    prefix_cache: bool | None
    """Whether the prompt's beginning may come from, and go to, the verifier's prefix cache; default True. It changes no
    token."""
    report_rejected: bool
    """Report the draft tokens that were verified and rejected, in ``Chunk.rejected``; default False."""
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
