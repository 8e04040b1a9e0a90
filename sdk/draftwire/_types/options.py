"""The keyword parameters of a request, each declared once: its type, its field in the message, its range, its flag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypedDict

from draftwire._types.option import Option, Range
from draftwire._types.speculation import Speculation


class BatchOptions(TypedDict, total=False):
    """Keyword parameters shared by the requests of a batch."""

    max_tokens: Annotated[int | None, Option(default=128, range=Range(least=1), help="Most tokens to generate.")]
    """Most tokens to generate, at least 1; default 128. None continues to the end of the context."""
    fit_max_tokens: Annotated[bool, Option()]
    """Lower ``max_tokens`` to what the context leaves after the prompt, instead of refusing it; default False."""
    temperature: Annotated[
        float | None,
        Option(
            path="sampling.temperature",
            default=1.0,
            range=Range(least=0),
            help="Softmax temperature; 0 is greedy.",
            in_body=True,
        ),
    ]
    """Softmax temperature, finite and >= 0; default 1.0. 0 is greedy."""
    top_k: Annotated[int | None, Option(path="sampling.top_k", help="Keep the k most likely tokens.")]
    """Keep the k most likely tokens; default: all."""
    top_p: Annotated[
        float | None,
        Option(
            path="sampling.top_p",
            range=Range(above=0, most=1),
            help="Keep the most likely tokens up to this total probability.",
            in_body=True,
        ),
    ]
    """Keep the smallest set of most likely tokens whose probability reaches this, in (0, 1]; default 1."""
    min_p: Annotated[
        float | None,
        Option(
            path="sampling.min_p",
            range=Range(least=0, most=1),
            help="Keep tokens at least this likely, relative to the likeliest.",
            in_body=True,
        ),
    ]
    """Keep tokens with at least this times the probability of the most likely one, in [0, 1]; default 0."""
    typical_p: Annotated[
        float | None,
        Option(
            path="sampling.typical_p",
            range=Range(above=0, most=1),
            help="Keep the tokens whose surprise is nearest to the entropy, up to this total probability.",
            in_body=True,
        ),
    ]
    """Keep the tokens whose surprisal is closest to the entropy until their probability reaches this, in (0, 1];
    default 1. (Locally typical sampling, Meister et al., arXiv 2202.00666.)"""
    repetition_penalty: Annotated[
        float | None,
        Option(
            path="sampling.repetition_penalty",
            range=Range(above=0),
            help="Divides the logits of tokens in prompt or output; 1 has no effect.",
            in_body=True,
        ),
    ]
    """For tokens in prompt or output, divides positive logits and multiplies negative ones; above 0, default 1."""
    presence_penalty: Annotated[
        float | None,
        Option(
            path="sampling.presence_penalty",
            range=Range(least=-2, most=2),
            help="Subtracted from the logits of tokens in the output.",
            in_body=True,
        ),
    ]
    """Subtracted from the logits of tokens in the output, in [-2, 2]; default 0."""
    frequency_penalty: Annotated[
        float | None,
        Option(
            path="sampling.frequency_penalty",
            range=Range(least=-2, most=2),
            help="Subtracted from the logits of tokens in the output, once per occurrence.",
            in_body=True,
        ),
    ]
    """Subtracted from a token's logit once per occurrence in the output, in [-2, 2]; default 0."""
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Option(path="sampling.logit_bias", help="Added to the logit of a token; may be repeated."),
    ]
    """Added to the logits of tokens, by id, in [-100, 100]; default: none."""
    allowed_token_ids: Annotated[Iterable[int] | None, Option(path="sampling.allowed_token_ids", in_body=True)]
    """The only tokens allowed in the output; default: all."""
    banned_token_ids: Annotated[Iterable[int] | None, Option(path="sampling.banned_token_ids", in_body=True)]
    """Tokens not allowed in the output; default: none."""
    bad_words: Annotated[
        Iterable[str] | None,
        Option(
            path="sampling.bad_words",
            flag="--bad-word",
            help="Word that must not appear in the output; may be repeated.",
            in_body=True,
        ),
    ]
    """Words not allowed in the output; default: none."""
    min_tokens: Annotated[int | None, Option(range=Range(least=0), help="Fewest tokens to generate.", in_body=True)]
    """Fewest tokens to generate; nothing ends the output earlier. Default 0."""
    ignore_eos: Annotated[bool, Option(help="Continue past end-of-sequence tokens.", in_body=True)]
    """Continue past end-of-sequence tokens; default False."""
    stop: Annotated[str | Iterable[str] | None, Option(help="End before this text; may be repeated.")]
    """The output ends before the first occurrence of any of these strings; default: none."""
    stop_token_ids: Annotated[
        Iterable[int] | None, Option(flag="--stop-token-id", help="End with this token; may be repeated.", in_body=True)
    ]
    """The output ends with the first occurrence of any of these tokens; default: none."""
    include_stop: Annotated[bool, Option(help="Keep the stop text, or the stop token's text, in the output.")]
    """Keep the stop string, or the text of the stop token, that ended the output in the text; default False."""
    special_tokens: Annotated[bool, Option()]
    """Keep special tokens in the text, by their names, except one that ends the output; default False."""
    max_time: Annotated[
        float | None,
        Option(range=Range(above=0), help="Seconds after which the request ends with the tokens so far.", in_body=True),
    ]
    """Seconds after which the request ends with its output so far and the finish reason ``"deadline"``; it may run one
    step longer. Default: no limit. ``timeout`` raises an error instead."""
    logprobs: Annotated[
        int | None,
        Option(
            path="log_probs",
            help="Report each token's log-probability, and those of this many of the likeliest tokens.",
        ),
    ]
    """Report the log-probability of each token, and of this many of the likeliest at its position, from 0 to 64;
    default: no report. Taken from the softmax of the target's own logits, at temperature 1, before penalties and
    bias."""
    prompt_logprobs: Annotated[
        int | None,
        Option(
            path="prompt_log_probs",
            range=Range(least=0, most=64),
            help="Report the same log-probabilities for the prompt's tokens.",
            in_body=True,
        ),
    ]
    """Report log-probabilities of the prompt's tokens in ``Generation.prompt``, as ``logprobs`` does; default: no
    report."""
    echo: Annotated[bool, Option(help="Also print the prompt's text.")]
    """Report the prompt's text in ``Generation.prompt``; default False."""
    suffix: Annotated[str | None, Option()]
    """The text after the output, which goes between the prompt, a text, and this one; default: none. Refused if the
    target's tokenizer has no tokens for filling in the middle."""
    json_schema: Annotated[
        str | Mapping[str, Any] | None,
        Option(path="structured_output.json_schema", help="JSON schema that the output must match.", file=True),
    ]
    """Constrain the output to a JSON value that is valid under this JSON schema; default: any text. At most one of
    json_schema, json_object, regex, grammar, ebnf and choice."""
    json_object: Annotated[bool, Option(path="structured_output.json_object", help="Make the output a JSON object.")]
    """Constrain the output to a JSON object; default False."""
    regex: Annotated[
        str | None, Option(path="structured_output.regex", help="Regular expression that the whole output must match.")
    ]
    """Constrain the output to a full match of this regular expression."""
    grammar: Annotated[
        str | None,
        Option(
            path="structured_output.lark", help="Grammar that the output must follow, in Lark's notation.", file=True
        ),
    ]
    """Constrain the output to this grammar, in Lark's notation."""
    ebnf: Annotated[
        str | None,
        Option(path="structured_output.ebnf", help="Grammar that the output must follow, in GBNF.", file=True),
    ]
    """Constrain the output to this grammar, in GBNF, the notation of llama.cpp."""
    choice: Annotated[
        Iterable[str] | None,
        Option(path="structured_output.choice", help="A text that the output may be; may be repeated."),
    ]
    """Constrain the output to one of these texts."""
    jump_ahead: Annotated[
        bool | None,
        Option(
            path="structured_output.jump_ahead",
            flag="--no-jump-ahead",
            help="Do not draft the tokens that the output's form determines.",
        ),
    ]
    """Whether the engine itself proposes tokens that the constraint leaves no choice about; default True. Does not
    affect the output."""
    prefix_cache: Annotated[bool | None, Option()]
    """Whether the beginning of the prompt may be read from and stored in the verifier's prefix cache; default True.
    Does not affect the output."""
    private: Annotated[
        bool, Option(help="Keep the text out of followed traffic, training, and indexes over other requests' texts.")
    ]
    """Keep the text of prompt and output from other callers and from training: ``follow_traffic`` does not report the
    request, and ``local:suffix?shared=true`` does not store it; default False. Does not affect the output. The prefix
    cache is a matter of ``prefix_cache``."""
    report_rejected: Annotated[bool, Option()]
    """Report draft tokens that were verified and rejected, in ``Chunk.rejected``; default False."""
    adapter: Annotated[str | None, Option(help="LoRA adapter of the target, by name.")]
    """Name of the target's LoRA adapter, from ``Capabilities.adapters``; default: none."""
    speculation: Annotated[Speculation | None, Option()]
    """Speculation options; default ``Speculation()``."""
    timeout: Annotated[float | None, Option(path=None, help="Time limit of the request, in seconds.")]
    """Total seconds the request may take, including resumes; default: the client's timeout."""


class GenerateOptions(BatchOptions, total=False):
    """Keyword parameters of one request."""

    seed: Annotated[int | None, Option(path="sampling.seed", help="Seed; the same seed gives the same text.")]
    """Seed of the sampling noise, in [0, 2**64); default: a random one, reported in the result. The tokens depend only
    on model, prompt, sampling parameters and seed."""
    request_id: Annotated[str | None, Option()]
    """The request's id in the verifier's logs; default: chosen by the verifier."""
