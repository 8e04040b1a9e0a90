"""``draftwire generate``: continue a prompt."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from draftwire._types.options import GenerateOptions
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.options import DEFAULT_VERIFIERS, Json, Verifiers
from draftwire.cli.request_options import asking
from draftwire.cli.results import json_of, print_logprobs

STDIN = "-"


@connecting
@asking
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="Text to continue; - reads it from standard input.")],
    verifier: Verifiers = DEFAULT_VERIFIERS,
    as_json: Json = False,
    *,
    options: GenerateOptions,
    connection: Connection,
) -> None:
    """Continue a prompt, and print the text as it arrives."""
    if prompt == STDIN:
        prompt = sys.stdin.read()
    with connection.client(verifier) as client, client.stream(prompt, **options) as stream:
        begun = False
        try:
            for chunk in stream:
                if not as_json:
                    if options.get("echo") and not begun and stream.prompt:
                        sys.stdout.write(stream.prompt.text)
                    print(chunk.text, end="", flush=True)
                    begun = True
        finally:
            if begun:
                print()
        result = stream.result
        if as_json:
            print(json.dumps(json_of(result)))
            return
        if options.get("echo") and not begun and result.prompt:
            print(result.prompt.text)
        if result.prompt and result.prompt.logprobs:
            print_logprobs("PROMPT", result.prompt.logprobs)
        if result.logprobs:
            print_logprobs("OUTPUT", result.logprobs)
