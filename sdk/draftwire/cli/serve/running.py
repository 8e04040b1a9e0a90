"""The served processes, from start to end."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from draftwire.cli.failure import Failure
from draftwire.cli.loading import Loading, interrupt
from draftwire.cli.serve.gateway_process import GatewayProcess
from draftwire.cli.serve.one_log import OneLog
from draftwire.cli.serve.plan import Plan
from draftwire.cli.service import DRAFTER, VERIFIER, Job, Service

START_SECONDS = 3600.0
"""Time in which all must serve: large models are read for minutes, and may have to be fetched first."""
_POLL_SECONDS = 0.2
_STOP_SECONDS = 20.0
"""Time that each process has to end, requests in flight included."""


class Serving:
    """Running processes: the gateway, the verifier, and the drafter services."""

    def __init__(self, gateway: GatewayProcess, verifier: Service, drafters: list[Service], console: Console) -> None:
        self.gateway, self.verifier, self.drafters = gateway, verifier, drafters
        self._console = console

    def watch(self) -> None:
        """Watches until interrupted. The loss of a drafter is reported, and serving goes on.

        Raises:
            Failure: the gateway or the verifier has ended.
            KeyboardInterrupt: on Ctrl-C and SIGTERM.
        """
        left = list(self.drafters)
        while True:
            for child in (self.gateway, self.verifier):
                if child.ended is not None:
                    raise child.failure(child.ended)
            for drafter in [each for each in left if each.ended is not None]:
                left.remove(drafter)
                assert drafter.ended is not None
                self._console.print(f"{drafter.failure(drafter.ended)}\nserving goes on without it", soft_wrap=True)
            time.sleep(_POLL_SECONDS)


@contextmanager
def serving(plan: Plan, listen: str, verifier_listen: str, log: Path, console: Console) -> Iterator[Serving]:
    """Runs what a plan says. Within the block everything serves; at its end everything has ended.

    Raises:
        Failure: something cannot be started.
    """
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-serve-"))
    children: list[Job] = []
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with _opened(log) as one_log:
            try:
                with Loading(console, START_SECONDS) as loading:
                    started = _started(plan, listen, verifier_listen, scratch, children, one_log, loading, console)
                yield started
            finally:
                _stop(children)
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(scratch, ignore_errors=True)


def _opened(log: Path) -> OneLog:
    try:
        return OneLog(log)
    except OSError as error:
        raise Failure(f"--log: {log} cannot be written: {error.strerror}") from error


def _started(
    plan: Plan,
    listen: str,
    verifier_listen: str,
    scratch: Path,
    children: list[Job],
    log: OneLog,
    loading: Loading,
    console: Console,
) -> Serving:
    """Starts everything and waits until it serves; `children` gets each process as soon as it runs."""

    def begin(child: Job, text: str) -> None:
        children.append(child)
        log.follow(child)
        loading.show(child, text)

    drafters = []
    for number, model in enumerate(plan.drafts, 1):
        name = "drafter" if len(plan.drafts) == 1 else f"drafter-{number}"
        drafters.append(
            Service(name, DRAFTER, model, scratch, "--device", plan.device.drafts, threads=plan.drafter_threads)
        )
        begin(drafters[-1], f"loading {model}")
    addresses = [*(each.address for each in drafters), *plan.local]
    flags = ["--device", plan.device.target]
    flags += [part for address in addresses for part in ("--drafter", address)]
    if plan.chat_template is not None:
        flags += ["--chat-template", str(plan.chat_template.resolve())]
    verifier = Service(
        "verifier", VERIFIER, plan.model, scratch, *flags, threads=plan.verifier_threads, address=verifier_listen
    )
    begin(verifier, f"loading {plan.model}")
    loading.wait(verifier, *drafters)
    gateway = GatewayProcess(listen, verifier.address, scratch)
    begin(gateway, "starting the gateway")
    loading.wait(gateway)
    return Serving(gateway, verifier, drafters, console)


def _stop(children: list[Job]) -> None:
    """Ends all processes, those first that were started last. Another Ctrl-C ends them at once."""
    try:
        for child in reversed(children):
            child.terminate()
            child.wait(_STOP_SECONDS)
    except KeyboardInterrupt:
        for child in children:
            child.kill()
