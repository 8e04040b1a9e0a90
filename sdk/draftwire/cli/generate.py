"""``draftwire generate``: continue a prompt."""

from __future__ import annotations

import json
import sys
from typing import Annotated, cast

import typer

from draftwire._types.speculation import Acceptance, Planning, Preset, Speculation
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.options import (
    DEFAULT_VERIFIERS,
    Json,
    Labels,
    LogitBias,
    Verifiers,
    parse_labels,
    parse_logit_bias,
    text_or_file,
)
from draftwire.cli.results import generation_json
from draftwire.cli.table import print_logprobs

STDIN = "-"


@connecting
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads it from standard input.")],
    verifier: Verifiers = DEFAULT_VERIFIERS,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="Softmax temperature; 0 is greedy.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the most likely tokens up to this total probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens at least this likely, relative to the likeliest.")
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(help="Keep the tokens whose surprise is nearest to the entropy, up to this total probability."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the logits of tokens in prompt or output; 1 has no effect.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from the logits of tokens in the output.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtracted from the logits of tokens in the output, once per occurrence.")
    ] = None,
    logit_bias: LogitBias = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Word that must not appear in the output; may be repeated.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Fewest tokens to generate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the same seed gives the same text.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Continue past end-of-sequence tokens.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    stop_token_id: Annotated[list[int] | None, typer.Option(help="End with this token; may be repeated.")] = None,
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Keep the stop text, or the stop token's text, in the output.")
    ] = False,
    max_time: Annotated[
        float | None, typer.Option(help="Seconds after which the request ends with the tokens so far.")
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Report each token's log-probability, and those of this many of the likeliest tokens."),
    ] = None,
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="Report the same log-probabilities for the prompt's tokens.")
    ] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Also print the prompt's text.")] = False,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="Decode without speculation.")] = False,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Name of a drafter to use; may be repeated, then all of them draft at once."),
    ] = None,
    drafters: Annotated[int | None, typer.Option(help="Most drafters that draft at once.")] = None,
    label: Labels = None,
    max_draft_tokens: Annotated[int | None, typer.Option(help="Most draft tokens per step.")] = None,
    planning: Annotated[
        str | None,
        typer.Option(help="Draft tokens to verify: auto, those that pay, or always, all that arrive."),
    ] = None,
    prediction: Annotated[str | None, typer.Option(help="Expected output, to draft from.")] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(help="Rule by which draft tokens are accepted: coupled, rejection, typical or threshold."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Kind of content that sets the threshold: auto, code, json or narrative.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Least probability under the target, for the rule threshold.")
    ] = None,
    posterior_threshold: Annotated[
        float | None, typer.Option(help="Upper bound of the threshold of the rule typical.")
    ] = None,
    posterior_alpha: Annotated[
        float | None, typer.Option(help="Entropy factor in the threshold of the rule typical.")
    ] = None,
    dynamic_temperature: Annotated[
        bool, typer.Option("--dynamic-temperature", help="Let drafters lower their temperature where they are unsure.")
    ] = False,
    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="JSON schema that the output must match.")
    ] = None,
    json_object: Annotated[bool, typer.Option("--json-object", help="Make the output a JSON object.")] = False,
    regex: Annotated[str | None, typer.Option(help="Regular expression that the whole output must match.")] = None,
    grammar: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="Grammar that the output must follow, in Lark's notation.")
    ] = None,
    ebnf: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="Grammar that the output must follow, in GBNF.")
    ] = None,
    choice: Annotated[list[str] | None, typer.Option(help="A text that the output may be; may be repeated.")] = None,
    no_jump_ahead: Annotated[
        bool, typer.Option("--no-jump-ahead", help="Do not draft the tokens that the output's form determines.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Time limit of the request, in seconds.")] = None,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Continue a prompt, and print the text as it arrives."""
    if prompt == STDIN:
        prompt = sys.stdin.read()
    speculation = Speculation(
        enabled=not no_speculation,
        drafter=drafter[0] if drafter and len(drafter) == 1 else None,
        max_draft_tokens=max_draft_tokens,
        planning=cast(Planning | None, planning),
        labels=parse_labels(label),
        drafters=drafter if drafter and len(drafter) > 1 else drafters,
        prediction=prediction,
        acceptance=cast(Acceptance | None, acceptance),  # names that are none are refused when the request is made
        preset=cast(Preset | None, preset),
        threshold=threshold,
        posterior_threshold=posterior_threshold,
        posterior_alpha=posterior_alpha,
        dynamic_temperature=dynamic_temperature,
    )
    with (
        connection.client(verifier, timeout=timeout) as client,
        client.stream(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            typical_p=typical_p,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            logit_bias=parse_logit_bias(logit_bias),
            bad_words=bad_word,
            min_tokens=min_tokens,
            seed=seed,
            ignore_eos=ignore_eos,
            stop=stop,
            stop_token_ids=stop_token_id,
            include_stop=include_stop,
            max_time=max_time,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            echo=echo,
            json_schema=text_or_file(json_schema),
            json_object=json_object,
            regex=regex,
            grammar=text_or_file(grammar),
            ebnf=text_or_file(ebnf),
            choice=choice or None,
            jump_ahead=False if no_jump_ahead else None,
            speculation=speculation,
        ) as stream,
    ):
        begun = False
        try:
            for chunk in stream:
                if not as_json:
                    if echo and not begun and stream.prompt:
                        sys.stdout.write(stream.prompt.text)
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
                    begun = True
        finally:
            if begun:
                print()
        result = stream.result
        if as_json:
            print(json.dumps(generation_json(result)))
            return
        if result.prompt and result.prompt.logprobs:
            print_logprobs("PROMPT", result.prompt.logprobs)
        if result.logprobs:
            print_logprobs("OUTPUT", result.logprobs)
