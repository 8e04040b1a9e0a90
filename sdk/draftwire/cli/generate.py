"""``draftwire generate``: continue a prompt."""

from __future__ import annotations

import json
import sys
from typing import Annotated, cast

import typer

from draftwire._types.speculation import Acceptance, Preset, Speculation
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
    top_p: Annotated[float | None, typer.Option(help="Keep the most likely tokens up to this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens at least this likely, relative to the best.")] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(help="Keep the tokens whose surprise is nearest to the entropy up to this probability."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divides the logits of tokens in prompt or output; 1 is none.")
    ] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="Subtracted for tokens in the output.")] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtracted for each time a token is in the output.")
    ] = None,
    logit_bias: LogitBias = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Word that must not come; may be given several times.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Fewest tokens to generate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; the same one gives the same text.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past end-of-sequence tokens.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="End with this token; may be given several times.")
    ] = None,
    include_stop: Annotated[
        bool, typer.Option("--include-stop", help="Keep in the text the stop text, or the stop token's text.")
    ] = False,
    max_time: Annotated[
        float | None, typer.Option(help="Seconds after which the request ends with what it has.")
    ] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Tell each token's log-probability, and of so many of the likeliest.")
    ] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt's tokens.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt's text, too.")] = False,
    no_speculation: Annotated[bool, typer.Option("--no-speculation", help="Decode plainly.")] = False,
    drafter: Annotated[
        list[str] | None, typer.Option(help="Name of a drafter to use; several draft at once when given several times.")
    ] = None,
    drafters: Annotated[int | None, typer.Option(help="Most drafters that draft at once.")] = None,
    label: Labels = None,
    max_draft_tokens: Annotated[int | None, typer.Option(help="Most draft tokens a step.")] = None,
    prediction: Annotated[str | None, typer.Option(help="Text that the output is expected to be much like.")] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="How draft tokens are accepted: coupled, rejection, typical or threshold.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Threshold by content: auto, code, json or narrative.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Least probability, for threshold.")] = None,
    posterior_threshold: Annotated[float | None, typer.Option(help="For typical.")] = None,
    posterior_alpha: Annotated[float | None, typer.Option(help="For typical.")] = None,
    dynamic_temperature: Annotated[
        bool, typer.Option("--dynamic-temperature", help="Draft the cooler the less sure the drafter is.")
    ] = False,
    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="The output is JSON that this schema allows.")
    ] = None,
    json_object: Annotated[bool, typer.Option("--json-object", help="The output is a JSON object.")] = False,
    regex: Annotated[str | None, typer.Option(help="This regular expression matches the whole output.")] = None,
    grammar: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="The output is a text of this grammar, in Lark's notation.")
    ] = None,
    ebnf: Annotated[
        str | None, typer.Option(metavar="FILE|TEXT", help="The output is a text of this grammar, in GBNF.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(help="The output is this text, or another one given so; several times.")
    ] = None,
    no_jump_ahead: Annotated[
        bool, typer.Option("--no-jump-ahead", help="Do not propose what the output's form leaves no choice about.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds the request may take.")] = None,
    as_json: Json = False,
    *,
    connection: Connection,
) -> None:
    """Continue a prompt, printing the text as it comes."""
    if prompt == STDIN:
        prompt = sys.stdin.read()
    speculation = Speculation(
        enabled=not no_speculation,
        drafter=drafter[0] if drafter and len(drafter) == 1 else None,
        max_draft_tokens=max_draft_tokens,
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
