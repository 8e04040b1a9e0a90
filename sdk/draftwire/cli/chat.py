"""`draftwire chat`: a conversation, line by line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from draftwire.cli.connection import Connection, connecting
from draftwire.cli.options import DEFAULT_VERIFIERS, Verifiers
from draftwire.client import Client

NEW = "/new"
"""A line that begins another conversation."""


@connecting
def chat(
    verifier: Verifiers = DEFAULT_VERIFIERS,
    system: Annotated[str | None, typer.Option(help="System message that the conversation begins with.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="Softmax temperature; 0 is greedy.")] = 0.7,
    top_p: Annotated[float | None, typer.Option(help="Keep the most likely tokens up to this probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every answer.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds an answer may take.")] = None,
    *,
    connection: Connection,
) -> None:
    """Answer each line of the standard input, printing the text as it comes; /new begins another conversation."""
    beginning = [{"role": "system", "content": system}] if system else []
    said = list(beginning)
    with connection.client(verifier, timeout=timeout) as client:
        while (line := _line()) is not None:
            if line.strip() == NEW:
                said = list(beginning)
            elif line.strip():
                said.append({"role": "user", "content": line})
                said.append(
                    {"role": "assistant", "content": _answer(client, said, max_tokens, temperature, top_p, seed)}
                )


def _line() -> str | None:
    """The next line, None at the end."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _answer(
    client: Client,
    said: list[dict[str, str]],
    max_tokens: int,
    temperature: float,
    top_p: float | None,
    seed: int | None,
) -> str:
    with client.stream_chat(said, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed) as stream:
        try:
            for chunk in stream:
                print(chunk.text, end="", flush=True)
        finally:
            print()
    result = stream.result
    if sys.stderr.isatty():
        length = result.speculation.acceptance_length
        print(f"  ({len(result.token_ids)} tokens, {length:.1f} a step of the target)", file=sys.stderr)
    return result.text
