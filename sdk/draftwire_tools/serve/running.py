"""The served processes, from start to end."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from draftwire._sync.client import Client
from draftwire._types.drafter import Drafter
from draftwire.cli.failure import Failure
from draftwire.errors import DraftwireError
from draftwire_tools.loading import Loading, handle_signals, restore_signals
from draftwire_tools.serve.auto import LOOKUP
from draftwire_tools.serve.gain import Gain
from draftwire_tools.serve.gateway_process import GatewayProcess
from draftwire_tools.serve.learner_process import (
    HEAD,
    LearnerProcess,
    can_learn,
    learned_lookup,
    learning_directory,
    learns_head,
    tunable,
)
from draftwire_tools.serve.one_log import OneLog
from draftwire_tools.serve.plan import DRAFT, LOCAL, Options, ServePlan, name_of
from draftwire_tools.serve.ports import reachable
from draftwire_tools.service import DRAFTER, VERIFIER, Job, Service, call_here

START_SECONDS = 3600.0
"""Time in which all must serve: large models are read for minutes, and may have to be fetched first."""
_POLL_SECONDS = 0.2
_GAIN_SECONDS = 5.0
"""Interval of readings of the gain."""
_ANSWER_SECONDS = 5.0
_ATTACH_SECONDS = 600.0
_HEAD_NAME = "head"
"""Name of the head that learns from nothing."""
_LOOKUP_NAME = "lookup"
"""Name of the lookup drafter that remembers served texts, whose address is long."""
_LISTEN_SECONDS = 60.0
"""Time in which the gateway must listen. It loads no model."""
_STOP_SECONDS = 20.0
"""Time that each process has to end, requests in flight included."""
_SHARE_BESIDE_A_DRAFT = "0.8"
"""Share of the GPU's memory for the target and its KV cache, if a draft model is to be loaded next to them."""


class Serving:
    """Running processes: the gateway, the verifier, and the drafter services."""

    def __init__(
        self,
        gateway: GatewayProcess,
        verifier: Service,
        drafters: dict[str, Service],
        client: Client,
        plan: ServePlan,
        drafting: Sequence[str],
        console: Console,
        learner: LearnerProcess | None = None,
    ) -> None:
        """drafters: by name. client: of the verifier. drafting: names and addresses of the drafters that are ready.
        learner: None if nothing learns."""
        self.gateway, self.verifier, self.drafters = gateway, verifier, drafters
        self.plan = plan
        self.drafting = tuple(drafting)
        self.learner = learner
        self._client = client
        self._console = console
        self._gain = Gain(client, plan)

    def watch(self) -> None:
        """Watches until interrupted. The loss of a drafter or of the learner is reported, and serving goes on; so are
        what was learned, and the gain, now and then.

        Raises:
            Failure: the gateway or the verifier has ended.
            KeyboardInterrupt: on Ctrl-C, SIGTERM and SIGHUP.
        """
        left: dict[str, Job] = dict(self.drafters)
        if self.learner is not None:
            left[self.learner.name] = self.learner
        due = time.monotonic() + _GAIN_SECONDS
        while True:
            for child in (self.gateway, self.verifier):
                if child.ended is not None:
                    raise child.failure(child.ended)
            for name, drafter in list(left.items()):
                if drafter.ended is not None:
                    del left[name]
                    why = drafter.failure(drafter.ended)
                    self._console.print(f"{why}\nserving continues without it", soft_wrap=True, markup=False)
            if time.monotonic() > due:
                with contextlib.suppress(DraftwireError):  # busy or ending, which the loop above finds
                    self._say("gain", self._gain.news())
                for line in () if self.learner is None else self.learner.news():
                    self._say("learned", line)
                due = time.monotonic() + _GAIN_SECONDS
            time.sleep(_POLL_SECONDS)

    def tell_gain(self) -> None:
        """Says what drafting has gained, as far as it is known."""
        self._say("gain", self._gain.line())

    def _say(self, name: str, text: str | None) -> None:
        if text is not None:
            self._console.print(f"{name:9} {text}", soft_wrap=True, markup=False)


@contextmanager
def serving(
    make_plan: Callable[[], ServePlan], options: Options, listen: str, verifier_listen: str, log: Path, console: Console
) -> Iterator[Serving]:
    """Runs what a plan says. Within the block everything serves; at its end everything has ended.

    make_plan: is called once the port is open, since it may download models: else all would load, and then find the
    port taken. options: of the plan.

    Raises:
        Failure: something cannot be started, or a drafter cannot draft for the target.
    """
    call_here()
    scratch = Path(tempfile.mkdtemp(prefix="draftwire-serve-"))
    children: list[Job] = []
    before = handle_signals()
    try:
        with _opened(log) as one_log, Client(reachable(verifier_listen), timeout=_ANSWER_SECONDS) as client:
            try:
                gateway = GatewayProcess(
                    listen, reachable(verifier_listen), scratch, *options.gateway_flags, scheme=options.scheme
                )
                children.append(gateway)
                one_log.follow(gateway)
                _wait_for_port(gateway)
                plan = make_plan()
                with Loading(console, START_SECONDS) as loading:
                    started = _started(
                        plan, gateway, verifier_listen, scratch, children, one_log, loading, client, console
                    )
                yield started
            finally:
                _stop(children)
    finally:
        restore_signals(before)
        shutil.rmtree(scratch, ignore_errors=True)


def _opened(log: Path) -> OneLog:
    try:
        return OneLog(log)
    except OSError as error:
        raise Failure(f"--log: {log} cannot be written: {error.strerror}") from error


def _started(
    plan: ServePlan,
    gateway: GatewayProcess,
    verifier_listen: str,
    scratch: Path,
    children: list[Job],
    log: OneLog,
    loading: Loading,
    client: Client,
    console: Console,
) -> Serving:
    """Starts everything else and waits until it serves; `children` gets each process as soon as it runs."""

    def begin(child: Job, text: str, *, needed: bool = True) -> None:
        children.insert(-1, child)  # before the gateway, which began first and ends first
        log.follow(child)
        loading.show(child, text, needed=needed)

    options = plan.options
    drafters = {}
    for name, model in plan.drafts.items():
        flags = ["--device", options.device.drafts]
        if options.target_tokenizer is not None:
            flags += ["--target-tokenizer", options.target_tokenizer]
        process = "drafter" if len(plan.drafts) == 1 else f"drafter-{name}"
        drafters[name] = Service(process, DRAFTER, model, scratch, *flags, threads=plan.drafter_threads)
        begin(drafters[name], f"loading {name}", needed=model not in plan.chosen)
    flags = ["--device", options.device.target]
    if cache := cache_flags(plan):
        loading.wait(*drafters.values())  # the KV cache takes what they leave of the GPU's memory
        flags += cache
    looks_up = options.learn and LOOKUP in plan.chosen
    learns = looks_up or (options.learn and tunable(plan))
    has_head = learns and learns_head(plan)
    given = [address for address in plan.local if not (looks_up and address == LOOKUP)]
    flags += [part for address in given for part in ("--drafter", address)]
    flags += together_flags(plan, has_head=has_head)
    if learns:
        flags += ["--share-traffic"]
    if options.chat_template is not None:
        flags += ["--chat-template", str(options.chat_template.resolve())]
    verifier = Service(
        "verifier", VERIFIER, plan.model, scratch, *flags, threads=plan.verifier_threads, address=verifier_listen
    )
    begin(verifier, f"loading {name_of(plan.model)}")
    loading.wait(verifier, *drafters.values())
    running = {name: each for name, each in drafters.items() if each not in loading.given_up}
    directory = learning_directory(plan, client.model_info().fingerprint) if learns else None
    if directory is not None and looks_up:
        attach_lookup(client, directory, console)
    if has_head:
        attach_head(client, console)
    drafting = _attach(client, running, plan, console)
    loading.show(gateway, "connecting the gateway")
    loading.wait(gateway)
    learner = None
    if directory is not None and (looks_up or can_learn(drafting)):
        learner = LearnerProcess(verifier.address, directory, plan, scratch)
        children.insert(-1, learner)
        log.follow(learner)
    return Serving(gateway, verifier, running, client, plan, drafting, console, learner)


def together_flags(plan: ServePlan, *, has_head: bool = False) -> tuple[str, ...]:
    """Returns the verifier's flags that let the chosen drafters draft for a request at once, unless a variable says how
    many do. has_head: whether a head learns next to them."""
    together = len(plan.chosen) + has_head
    if together < 2 or "DRAFTWIRE_DRAFTERS_PER_REQUEST" in os.environ:
        return ()
    return "--drafters-per-request", str(together)


def cache_flags(plan: ServePlan) -> tuple[str, ...]:
    """Returns the verifier's flags for a KV cache as large as its GPU allows; none on a CPU, or if a variable sets it.

    A share of the GPU is left for the model of ``local:draft``, which is loaded after the cache.
    """
    if plan.options.device.target == "cpu" or "DRAFTWIRE_KV_SLOTS" in os.environ:
        return ()
    drafts = any(address.partition("?")[0] == DRAFT for address in plan.local)
    if drafts and "DRAFTWIRE_GPU_MEMORY_UTILIZATION" not in os.environ:
        return "--kv-slots", "0", "--gpu-memory-utilization", _SHARE_BESIDE_A_DRAFT
    return "--kv-slots", "0"


def _wait_for_port(gateway: GatewayProcess) -> None:
    """Waits until the gateway listens.

    Raises:
        Failure: it has ended, or takes too long.
    """
    deadline = time.monotonic() + _LISTEN_SECONDS
    while not gateway.is_listening():
        if time.monotonic() > deadline:
            raise Failure(f"gateway: does not listen on {gateway.address} after {_LISTEN_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _attach(client: Client, drafters: dict[str, Service], plan: ServePlan, console: Console) -> list[str]:
    """Attaches the drafter services under their names, and waits for the drafters in the verifier.

    Returns the names and addresses of those that are ready. One of the plan's choice that cannot draft is detached.

    Raises:
        Failure: one that was named cannot draft for the target.
    """

    def give_up(named: str, why: object) -> None:
        if named not in plan.chosen:
            raise Failure(f"--draft {named}: {why}")
        console.print(f"{named} cannot draft for this target: {why}\nserving without it", soft_wrap=True, markup=False)

    ready = []
    for name, service in drafters.items():
        try:
            client.drafters.attach(service.address, name, timeout=_ATTACH_SECONDS)
        except DraftwireError as error:
            give_up(plan.drafts[name], error)
        else:
            ready.append(name)
    deadline = time.monotonic() + _ATTACH_SECONDS
    while True:
        local = [each for each in client.drafters.list() if each.address.startswith(LOCAL)]
        if all(each.state != "connecting" for each in local) or time.monotonic() > deadline:
            break
        time.sleep(_POLL_SECONDS)
    for drafter in local:
        if drafter.state == "ready":
            ready.append(drafter.address)
        else:
            give_up(drafter.address, _why(drafter))
            client.drafters.detach(drafter.name)
    return ready


def attach_lookup(client: Client, directory: Path, console: Console) -> None:
    """Attaches the lookup drafter that remembers served texts, or the one that does not if their file cannot be used.

    directory: of what is learned, which is known only once the verifier has told the target's fingerprint.
    """
    address = learned_lookup(directory)
    try:
        client.drafters.attach(address, _LOOKUP_NAME, timeout=_ATTACH_SECONDS)
    except DraftwireError as error:
        console.print(f"{error}\nserving with {LOOKUP} in its place", soft_wrap=True, markup=False)
        client.drafters.attach(LOOKUP, timeout=_ATTACH_SECONDS)


def attach_head(client: Client, console: Console) -> None:
    """Attaches the head that is to learn, if the target can have one; says why if not."""
    try:
        client.drafters.attach(HEAD, _HEAD_NAME, timeout=_ATTACH_SECONDS)
    except DraftwireError as error:
        console.print(f"{error}\nlookup learns alone", soft_wrap=True, markup=False)


def _why(drafter: Drafter) -> str:
    """Returns why a drafter does not draft."""
    return str(drafter.last_error) if drafter.last_error is not None else f"it is {drafter.state}"


def _stop(children: list[Job]) -> None:
    """Ends all processes, from the last to the first. The gateway is the last and ends first: it accepts no more
    requests, and those in flight finish while the verifier still serves. Another Ctrl-C ends all at once."""
    try:
        for child in reversed(children):
            child.terminate()
            child.wait(_STOP_SECONDS)
    except KeyboardInterrupt:
        for child in children:
            child.kill()
