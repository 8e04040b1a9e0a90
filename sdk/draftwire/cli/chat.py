"""`draftwire chat`: a conversation, line by line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from draftwire._sync.client import Client
from draftwire._types.options import GenerateOptions
from draftwire._types.quoting import quoted
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import DEFAULT_VERIFIERS, Verifiers
from draftwire.cli.request_options import asking_for
from draftwire.errors import DraftwireError, InvalidFieldError

NEW, HELP, QUIT = "/new", "/help", "/quit"
COMMANDS = {
    NEW: "starts a new conversation",
    HELP: "shows this help",
    QUIT: "ends the chat; so do Ctrl-C at the prompt and the end of the input. Ctrl-C during an answer ends the answer",
}
"""Commands, with their descriptions."""
_LEAST_CHAT_PARAMETERS = 100_000_000
"""Parameters below which a model was hardly trained for conversation."""


@connecting
@asking_for(max_tokens=512, temperature=0.7, top_p=None, seed=None, private=False, timeout=None)
def chat(
    verifier: Verifiers = DEFAULT_VERIFIERS,
    system: Annotated[str | None, typer.Option(help="System message at the start of the conversation.")] = None,
    *,
    options: GenerateOptions,
    connection: Connection,
) -> None:
    """Answer each line of the standard input, and print the text as it arrives; /help shows the commands."""
    beginning = [{"role": "system", "content": system}] if system else []
    said = list(beginning)
    with connection.client(verifier, timeout=options.get("timeout")) as client:
        if sys.stdin.isatty():
            introduce(client)
        while (line := _line()) is not None:
            command = line.strip()
            if command == QUIT:
                return
            if command == NEW:
                said = list(beginning)
            elif command == HELP:
                _note("\n".join(f"{name:6} {does}" for name, does in COMMANDS.items()))
            elif command.startswith("/"):
                _note(f"unknown command {quoted(command)}; {HELP} shows the commands")
            elif command:
                said.append({"role": "user", "content": line})
                if answer := _answer(client, said, options):
                    said.append({"role": "assistant", "content": answer})
                else:  # it ended before its first word: two turns of the user in a row would be refused
                    said.pop()


def introduce(client: Client) -> None:
    """Prints the name of the model, with a note on its abilities.

    Raises:
        Failure: its target has no chat template.
        DraftwireError: the verifier cannot be asked.
    """
    info = client.model_info()
    try:
        client.tokenize(messages=[{"role": "user", "content": "hello"}])
    except InvalidFieldError as error:
        why = error.message.removeprefix("messages: ")
        raise Failure(f"{info.model_id} cannot chat: {why}; draftwire generate continues a text") from error
    _note(f"{info.model_id} ({info.parameters / 1e6:.3g} M parameters) at {client.address}; {HELP} shows the commands")
    if info.parameters < _LEAST_CHAT_PARAMETERS:
        _note("a model of this size is hardly trained to chat: it merely continues the conversation's text")


def _note(text: str) -> None:
    """Prints a note that is not part of the conversation."""
    print(text, file=sys.stderr, flush=True)


def _line() -> str | None:
    """Returns the next line of input; None at the end."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _answer(client: Client, said: list[dict[str, str]], options: GenerateOptions) -> str:
    """Prints an answer as it arrives, and returns it: what there is of it, if Ctrl-C or an error ends it."""
    told = []
    try:
        with client.stream_chat(said, **options) as stream:
            try:
                for chunk in stream:
                    told.append(chunk.text)
                    print(chunk.text, end="", flush=True)
            finally:
                print()
    except (KeyboardInterrupt, DraftwireError) as error:
        if isinstance(error, DraftwireError) and not sys.stdin.isatty():
            raise  # a script is told by the exit status
        _note(str(error) or "the answer was stopped; Ctrl-C again ends the chat")
        return "".join(told)
    result = stream.result
    if sys.stderr.isatty():
        length = result.speculation.acceptance_length
        print(f"  ({len(result.token_ids)} tokens, {length:.1f} per step of the target)", file=sys.stderr)
    return result.text
