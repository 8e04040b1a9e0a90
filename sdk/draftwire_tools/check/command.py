"""The command: checks its options, starts services if asked to, compares, writes the certificate."""

from __future__ import annotations

import json
import os
import shlex
import ssl
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftwire._async.client import AsyncClient
from draftwire.cli.connection import Connection, connecting
from draftwire.cli.failure import Failure
from draftwire.cli.options import DEFAULT_VERIFIERS
from draftwire_tools import interruption
from draftwire_tools.bench.command import check_files, services_for
from draftwire_tools.bench.services import Services
from draftwire_tools.check.black_box.check import BlackBoxCheck
from draftwire_tools.check.native import NativeCheck
from draftwire_tools.check.prompts import check_prompts
from draftwire_tools.check.report.certificate import Certificate
from draftwire_tools.check.report.page import page
from draftwire_tools.check.report.tables import print_summary
from draftwire_tools.probe import https_context
from draftwire_tools.progress import status

_CALL_SECONDS = 600.0


@connecting
def check(
    verifier: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="DRAFTWIRE_VERIFIER", help="Address of the verifier to check."),
    ] = DEFAULT_VERIFIERS[0],
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Start verifiers with this target model, a directory or a GGUF file, instead of using --verifier; "
            "checks more.",
        ),
    ] = None,
    draft: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="MODEL",
            help="With --target: also start a drafter with this model, which may have another tokenizer; may be "
            "repeated.",
        ),
    ] = None,
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DRAFTER",
            help="A drafter's name, or an address to attach meanwhile (local:suffix); may be repeated. Default: the "
            "attached drafters.",
        ),
    ] = None,
    openai: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Check an OpenAI-compatible endpoint instead, such as http://host:8000/v1."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --openai: an endpoint of the same model that decodes plainly."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --openai: the model's name there. Default: the first one listed.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --openai: file with the API key.")
    ] = None,
    plain_field: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help='With --openai: fields of a request that turn speculation off, such as {"speculation": {"enabled": '
            "false}}. Default: none.",
        ),
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Prompts: JSON lines, or one text; may be repeated. Default: built-in ones."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per sampling and case.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens per request.")] = 48,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds per test of distributions; 0 leaves them out.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first request.")] = 1,
    minutes: Annotated[float, typer.Option(min=0.01, help="Time for the comparison; the rest is left out.")] = 10.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the certificate as JSON.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the certificate as one HTML page.")
    ] = None,
    *,
    connection: Connection,
) -> None:
    """Check that speculation changes no output, and write a certificate. Exit status 1 if one differs, or none is
    compared."""
    check_files(json=json_file, html=html_file)
    read = check_prompts(prompts or [], requests)
    command = shlex.join(["draftwire", *sys.argv[1:]])
    console = Console(stderr=True, highlight=False)
    if openai is None:
        for option, value in (("--reference", reference), ("--model", model), ("--api-key-file", api_key_file)):
            if value is not None:
                raise ValueError(f"{option}: requires --openai")
        if plain_field is not None:
            raise ValueError("--plain-field: requires --openai")
        with services_for(verifier, target, draft or [], console, "draftwire check --target") as services:
            names = [*services.drafters, *drafter] if drafter else []
            native = NativeCheck(read, max_tokens, seed, seeds, minutes, names, target, command)
            options = connection.options() if target is None else {}  # what was started here needs none
            certificate = interruption.run(_run(native, services, console, options))
    else:
        if target is not None or draft or drafter:
            raise ValueError("--openai: cannot be combined with --target, --draft or --drafter")
        box = BlackBoxCheck.of(
            openai,
            reference,
            model,
            api_key_file,
            plain_field,
            read,
            max_tokens,
            seed,
            minutes,
            command,
            _https(connection),
        )
        with status(console, "comparing") as shown:
            certificate = box.run(shown)
    if json_file is not None:
        json_file.write_text(json.dumps(certificate.to_json(), indent=2) + "\n", encoding="utf-8")
    if html_file is not None:
        html_file.write_text(page(certificate), encoding="utf-8")
    print_summary(certificate)
    if not certificate.passed:
        raise Failure(certificate.verdict)


def _https(connection: Connection) -> ssl.SSLContext:
    """Returns the TLS context for endpoints.

    Raises:
        ValueError: a file cannot be used, or an option does not apply to endpoints.
    """
    if connection.tls_server_name is not None:
        raise ValueError("--tls-server-name: applies only to --verifier; the URL of --openai has the name")
    if connection.token_file not in (None, os.environ.get("DRAFTWIRE_TOKEN_FILE")):  # which is for all commands
        raise ValueError("--token-file: applies only to --verifier; --openai takes --api-key-file")
    return https_context(connection)


async def _run(native: NativeCheck, services: Services, console: Console, options: dict[str, Any]) -> Certificate:
    async with AsyncClient(services.verifier, timeout=_CALL_SECONDS, **options) as client:
        for name, drafter in services.drafters.items():
            await client.drafters.attach(drafter.address, name, trusted=True)  # started here, from a model named here
        with status(console, "comparing") as shown:
            return await native.run(client, shown)
