"""The command: starts everything that serves a model, says where it is, and ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftwire._types.address import is_loopback
from draftwire_tools.serve.auto import AUTO, LOOKUP, choose
from draftwire_tools.serve.device import device_here
from draftwire_tools.serve.gateway_process import MODULE
from draftwire_tools.serve.learner_process import learns_head, tunable
from draftwire_tools.serve.plan import Options, ServePlan, check, plan_of
from draftwire_tools.serve.ports import USUAL_VERIFIER, listen_address, reachable, verifier_address
from draftwire_tools.serve.running import Serving, serving
from draftwire_tools.service import check_services_installed

NOTE = "local:ngram speeds up text that repeats itself; for all text add --draft MODEL"
"""Purpose of the default drafter."""

STAYS = "texts stay on this machine"
NOTHING_TO_LEARN = "nothing can learn: there is no draft model in the verifier; add --draft 'local:draft?model=MODEL'"
LOOKUP_ALONE = "lookup alone, without a draft model in the verifier"
FROM_NOTHING = "lookup, and a head that begins with nothing"


def serve(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="The model to serve: a directory, a GGUF file or a hub id.")
    ],
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DRAFT",
            help="A draft model, or a drafter in the verifier such as local:mtp; may be repeated. By default auto: the "
            "target's own heads, a published drafter or a small general one, and local:ngram.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the OpenAI-compatible endpoint and the console.")
    ] = "127.0.0.1:8000",
    verifier_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the verifier (gRPC); by default 127.0.0.1:50051, where the other commands "
            "look for it, or a free port if that one is taken.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow unencrypted traffic beyond this machine, for --listen 0.0.0.0:8000."),
    ] = False,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate of the endpoint (PEM), to serve HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of --tls-cert (PEM).")] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the keys that requests must have, one a line. Also: DRAFTWIRE_API_KEYS."
        ),
    ] = None,
    target_tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Directory, GGUF file or hub id of the target's tokenizer, for draft models with another one.",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Chat template (Jinja) to use in place of the model's own.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads of all processes together; by default one a core.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            envvar="DRAFTWIRE_DEVICE",
            help="Device of the models: auto (a GPU if torch can use one), cpu, cuda or cuda:N.",
        ),
    ] = "auto",
    learn: Annotated[
        bool,
        typer.Option(
            "--learn",
            help="Have the draft model in the verifier learn from what is served, in idle time, and the chosen lookup "
            "draft from all of it. Texts are kept on this machine.",
        ),
    ] = False,
    learn_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of what --learn keeps; by default one in ~/.local/share."),
    ] = None,
    learn_prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --learn: further prompts for the target to continue while nothing else runs, a .jsonl file or a "
            "text a line.",
        ),
    ] = None,
    learn_probabilities: Annotated[
        bool,
        typer.Option(
            "--learn-probabilities",
            help="With --learn: learn the probabilities of the target's likeliest tokens, and not its tokens alone.",
        ),
    ] = False,
    log: Annotated[Path, typer.Option(metavar="FILE", help="One log of all processes; lines are added.")] = Path(
        "draftwire.log"
    ),
) -> None:
    """Serve a model faster: verifier, drafters, OpenAI-compatible gateway and console, until Ctrl-C."""
    check_services_installed("draftwire serve", MODULE, "fastapi", "uvicorn", extra="serve,gateway")
    console = Console(highlight=False)
    flags = _gateway_flags(insecure, tls_cert, tls_key, api_key_file)
    endpoint = listen_address("--listen", listen)
    verifier_at = verifier_address(verifier_listen, endpoint)
    if not is_loopback(verifier_at):
        raise ValueError(
            f"--verifier-listen: {verifier_at} is open to other machines; draftwire serve keeps the verifier on this "
            "one. Start the services one by one to serve it with TLS (docs/getting-started.md)"
        )
    place = device_here(device)
    _line(console, "device", place.about)
    _line(console, "log", str(log.resolve()))
    drafts = draft or (AUTO,)
    options = Options(
        place, chat_template, target_tokenizer, flags, learn, learn_dir, learn_prompts, learn_probabilities
    )
    check(drafts, options)
    running = None
    try:
        with serving(
            lambda: _plan(model, drafts, threads, options, console), options, endpoint, verifier_at, log, console
        ) as running:
            _tell(running, console)
            running.watch()
    except KeyboardInterrupt:
        if running is not None:
            running.tell_gain()
        console.print("stopped")


def _gateway_flags(
    insecure: bool, tls_cert: Path | None, tls_key: Path | None, api_key_file: Path | None
) -> tuple[str, ...]:
    """Returns the gateway's flags for those given here, which have the same names."""
    files = {"--tls-cert": tls_cert, "--tls-key": tls_key, "--api-key-file": api_key_file}
    given = [part for flag, file in files.items() if file is not None for part in (flag, str(file.resolve()))]
    return (*given, "--insecure") if insecure else tuple(given)


def _line(console: Console, name: str, text: str) -> None:
    console.print(f"{name:9} {text}", soft_wrap=True, markup=False)


def _plan(model: str, drafts: Sequence[str], threads: int | None, options: Options, console: Console) -> ServePlan:
    """Returns the plan, with the chosen drafters, and says why they were chosen."""
    found = choose(model, drafts, options.device.target)
    for note in found.notes:
        _line(console, "auto", note)
    return plan_of(model, found.drafts, threads, options, found.chosen)


def _tell(running: Serving, console: Console) -> None:
    """Says what is served, and where."""
    plan = running.plan
    threads = f"{plan.verifier_threads} threads"
    if plan.drafts:
        threads += f", drafters {plan.drafter_threads}"
    _line(console, "model", f"{plan.model} ({threads})")
    _line(console, "drafters", ", ".join(running.drafting) or "none")
    url = f"{plan.options.scheme}://{reachable(running.gateway.address)}"
    _line(console, "endpoint", f"{url}/v1")
    _line(console, "console", f"{url}/")
    address = running.verifier.address
    _line(console, "verifier", f"{address} (gRPC)")
    if address != USUAL_VERIFIER:
        _line(console, "", f"for other commands: export DRAFTWIRE_VERIFIER={address}")
    if plan.options.learn:
        _line(console, "learning", _learning(running))
    if running.drafting == (LOOKUP,):
        _line(console, "note", NOTE)
    console.print("serving; Ctrl-C stops it")


def _learning(running: Serving) -> str:
    """Returns what learns, and where it keeps what it learns."""
    if running.learner is None:
        return NOTHING_TO_LEARN
    plan = running.plan
    what = FROM_NOTHING if learns_head(plan) else LOOKUP_ALONE
    parts = [str(running.learner.directory), *([] if tunable(plan) else [what]), STAYS]
    return "; ".join(parts)
