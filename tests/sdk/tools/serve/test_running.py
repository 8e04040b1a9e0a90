"""The served processes: how they are started, and in which order they end."""

import io
import signal
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from rich.console import Console

from draftwire._sync.drafters import Drafters
from draftwire.cli.failure import Failure
from draftwire.errors import InvalidArgumentError, UnsupportedDrafterError
from draftwire_tools.loading import Loading
from draftwire_tools.serve import running
from draftwire_tools.serve.command import _line
from draftwire_tools.serve.device import Device
from draftwire_tools.serve.learner_process import learned_lookup
from draftwire_tools.serve.plan import Options, plan_of
from draftwire_tools.serve.running import Serving, attach_head, attach_lookup, cache_flags, serving, together_flags

GPU = Options(Device("cuda", "auto", "cuda (a GPU)"))
CPU = Options(Device("cpu", "auto", "cpu"))


class Child:
    """A process that is ready at once."""

    events: ClassVar[list[str]] = []

    def __init__(self, name: str, logs: Path) -> None:
        self.name, self.log, self.address = name, logs / name, "127.0.0.1:1"
        self.log.touch()
        self.events.append(f"start {name}")

    def is_listening(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return True

    def terminate(self) -> None:
        self.events.append(f"end {self.name}")

    def wait(self, seconds: float) -> None:
        self.events.append(f"wait for {self.name}")


def children(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has processes replaced; returns the list of what happens to them."""
    monkeypatch.setattr(Child, "events", [])
    monkeypatch.setattr(running, "GatewayProcess", lambda *given, scheme: Child("gateway", given[2]))
    monkeypatch.setattr(running, "Service", lambda name, *given, **_: Child(name, given[2]))
    monkeypatch.setattr(running, "Gain", lambda *_: None)
    return Child.events


def running_plan(place: Path, *drafts: str) -> AbstractContextManager[Serving]:
    listen = "127.0.0.1:1"
    plan = plan_of("target", drafts, 4, CPU)
    return serving(lambda: plan, CPU, listen, listen, place / "log", Console(file=io.StringIO()))


def test_the_gateway_starts_first_and_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)
    monkeypatch.setattr(running, "_attach", lambda *_: [])
    with running_plan(tmp_path, "small", "smaller"):
        started = [f"start {name}" for name in ("gateway", "drafter-small", "drafter-smaller", "verifier")]
        assert events == started
    ends = ("gateway", "verifier", "drafter-smaller", "drafter-small")
    assert events[4:] == [f"{what} {name}" for name in ends for what in ("end", "wait for")]


def test_the_gateway_ends_first_if_starting_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)

    def refuse(*_: Any) -> None:
        raise Failure("it cannot draft")

    monkeypatch.setattr(running, "_attach", refuse)
    with (
        pytest.raises(Failure, match="it cannot draft"),
        running_plan(tmp_path),
    ):
        pytest.fail("it does not serve")
    assert [each for each in events if each.startswith("end")] == ["end gateway", "end verifier"]


def test_a_gateway_that_does_not_listen_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)
    monkeypatch.setattr(Child, "is_listening", lambda _: False)
    monkeypatch.setattr(running, "_LISTEN_SECONDS", 0.0)
    with (
        pytest.raises(Failure, match=r"^gateway: does not listen on 127\.0\.0\.1:1"),
        running_plan(tmp_path),
    ):
        pytest.fail("it does not serve")
    assert events == ["start gateway", "end gateway", "wait for gateway"]


def test_all_ends_with_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)
    monkeypatch.setattr(running, "_attach", lambda *_: [])
    before = signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), running_plan(tmp_path):
            assert signal.getsignal(signal.SIGHUP) is not signal.default_int_handler
            signal.raise_signal(signal.SIGHUP)
        assert events[-4:] == ["end gateway", "wait for gateway", "end verifier", "wait for verifier"]
        assert signal.getsignal(signal.SIGHUP) is signal.default_int_handler
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with running_plan(tmp_path):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_process_has_logged_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gateway:
        """Ends at the second look."""

        looks = iter((None, 1, 1))

        @property
        def ended(self) -> int | None:
            return next(self.looks)

        def failure(self, code: int) -> Failure:
            return Failure("the gateway has ended")

    monkeypatch.setattr(running, "Gain", lambda *_: None)
    drafter: Any = SimpleNamespace(ended=1, failure=lambda _: Failure("no room in [small] for [/INST]"))
    gateway: Any = Gateway()
    verifier: Any = SimpleNamespace(ended=None)
    client: Any = None
    out = io.StringIO()
    served = Serving(
        gateway, verifier, {"small": drafter}, client, plan_of("target", (), 4, CPU), (), Console(file=out)
    )
    with pytest.raises(Failure, match="the gateway has ended"):
        served.watch()
    assert out.getvalue() == "no room in [small] for [/INST]\nserving continues without it\n"


def test_addresses_and_names_are_said_as_they_are(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out)
    _line(console, "endpoint", "http://[fd00::5]:8000/v1")
    with Loading(console) as loading:
        child: Any = Child("drafter", tmp_path)
        loading.show(child, "loading [small]")
        loading.wait(child)
    assert out.getvalue().splitlines() == [
        "endpoint  http://[fd00::5]:8000/v1",
        "loading [small] ...",
        "loading [small]: ready after 0 s",
    ]


@pytest.mark.parametrize(
    ("drafts", "options", "variables", "flags"),
    [
        ((), CPU, (), ()),
        ((), GPU, (), ("--kv-slots", "0")),
        (("small",), GPU, (), ("--kv-slots", "0")),
        (("local:mtp",), GPU, (), ("--kv-slots", "0")),
        (("local:draft?model=small",), CPU, (), ()),
        (("local:draft?model=small",), GPU, (), ("--kv-slots", "0", "--gpu-memory-utilization", "0.8")),
        (("local:ngram", "local:draft?model=a"), GPU, (), ("--kv-slots", "0", "--gpu-memory-utilization", "0.8")),
        (("local:draft?model=small",), GPU, ("DRAFTWIRE_GPU_MEMORY_UTILIZATION",), ("--kv-slots", "0")),
        (("local:draft?model=small",), GPU, ("DRAFTWIRE_KV_SLOTS",), ()),
    ],
)
def test_the_size_of_the_cache(
    drafts: tuple[str, ...],
    options: Options,
    variables: tuple[str, ...],
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("DRAFTWIRE_KV_SLOTS", "DRAFTWIRE_GPU_MEMORY_UTILIZATION"):
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, "0.5")
    assert cache_flags(plan_of("target", drafts, 4, options)) == flags


class Pool:
    """A verifier's drafters: attaching a service fails, and one in the verifier cannot be made."""

    def __init__(self) -> None:
        self.drafters = self
        self.detached: list[str] = []

    def attach(self, *_: Any, **__: Any) -> None:
        raise InvalidArgumentError("another tokenizer")

    def list(self) -> list[Any]:
        return [
            SimpleNamespace(name=address, address=address, state=state, last_error=None)
            for address, state in (("local:ngram", "ready"), ("local:mtp", "incompatible"))
        ]

    def detach(self, name: str) -> None:
        self.detached.append(name)


def test_a_chosen_drafter_that_cannot_draft_is_told_and_left_out() -> None:
    told = io.StringIO()
    plan = plan_of("target", ("small", "local:mtp", "local:ngram"), 4, CPU, ("small", "local:mtp", "local:ngram"))
    pool: Any = Pool()
    service: Any = SimpleNamespace(address="127.0.0.1:1")
    assert running._attach(pool, {"small": service}, plan, Console(file=told)) == ["local:ngram"]
    assert pool.detached == ["local:mtp"]
    assert "small cannot draft for this target: another tokenizer" in told.getvalue()
    assert "local:mtp cannot draft for this target: it is incompatible" in told.getvalue()


def test_a_named_drafter_that_cannot_draft_ends_the_command() -> None:
    plan = plan_of("target", ("local:mtp", "local:ngram"), 4, CPU, ("local:ngram",))
    pool: Any = Pool()
    with pytest.raises(Failure, match="--draft local:mtp: it is incompatible"):
        running._attach(pool, {}, plan, Console(file=io.StringIO()))


class LookupPool:
    """A verifier's drafters, of which the one that begins with a file is refused while it is `damaged`."""

    def __init__(self, damaged: bool) -> None:
        self.drafters = self
        self.damaged = damaged
        self.attached: list[tuple[str, str | None]] = []

    def attach(self, address: str, name: str | None = None, *, timeout: float) -> None:
        if self.damaged and "texts=" in address:
            raise InvalidArgumentError("option texts: lookup.ids is damaged")
        self.attached.append((address, name))


def test_lookup_that_cannot_remember_is_told_and_looks_up_all_the_same() -> None:
    told = io.StringIO()
    remembering: Any = LookupPool(damaged=False)
    attach_lookup(remembering, Path("/learned"), Console(file=told))
    assert remembering.attached == [(learned_lookup(Path("/learned")), "lookup")]
    assert told.getvalue() == ""
    damaged: Any = LookupPool(damaged=True)
    attach_lookup(damaged, Path("/learned"), Console(file=told))
    assert damaged.attached == [("local:ngram", None)]
    assert told.getvalue() == "option texts: lookup.ids is damaged\nserving with local:ngram in its place\n"


def test_a_target_that_can_have_no_head_is_served_all_the_same() -> None:
    told = io.StringIO()

    def attach(address: str, name: str, *, timeout: float) -> None:
        raise UnsupportedDrafterError(f"{address} needs another target")

    pool: Any = SimpleNamespace(drafters=SimpleNamespace(attach=attach))
    attach_head(pool, Console(file=told))
    assert told.getvalue() == "local:recurrent needs another target\nlookup learns alone\n"


def test_a_head_learns_next_to_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children(monkeypatch)
    attached: list[tuple[str, str | None]] = []

    def attach(_: Drafters, address: str, name: str | None = None, *, timeout: float) -> None:
        attached.append((address, name))

    monkeypatch.setattr(Drafters, "attach", attach)
    monkeypatch.setattr(running, "LearnerProcess", lambda *given: Child("learner", given[3]))
    monkeypatch.setattr(running, "_attach", lambda *_: [address for address, _ in attached])
    monkeypatch.setattr(running.Client, "model_info", lambda _: SimpleNamespace(fingerprint="f" * 64))
    options = Options(CPU.device, learn=True, learn_directory=tmp_path / "learned")
    plan = plan_of("target", ("local:ngram",), 4, options, ("local:ngram",))
    listen = "127.0.0.1:1"
    with serving(lambda: plan, options, listen, listen, tmp_path / "log", Console(file=io.StringIO())) as served:
        assert attached == [(learned_lookup(tmp_path / "learned"), "lookup"), ("local:recurrent", "head")]
        assert served.learner is not None


@pytest.mark.parametrize(
    ("learn", "first", "chosen", "attached"),
    [
        (True, "local:draft?model=a", True, True),
        (True, "local:mtp", True, True),
        (True, "local:draft?model=a", False, False),
        (True, "local:recurrent", False, False),
        (False, "local:draft?model=a", True, False),
    ],
)
def test_learning_replaces_chosen_lookup(
    learn: bool, first: str, chosen: bool, attached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children(monkeypatch)
    verifier: list[str] = []

    def service(name: str, *flags: Any, **_: Any) -> Child:
        verifier.extend(flags[3:])
        return Child(name, flags[2])

    places: list[Path] = []
    monkeypatch.setattr(running, "Service", service)
    monkeypatch.setattr(running, "LearnerProcess", lambda *given: Child("learner", given[3]))
    monkeypatch.setattr(running, "_attach", lambda *_: [first])
    monkeypatch.setattr(running.Client, "model_info", lambda _: SimpleNamespace(fingerprint="f" * 64))
    monkeypatch.setattr(running, "attach_lookup", lambda _, directory, __: places.append(directory))
    options = Options(CPU.device, learn=learn, learn_directory=tmp_path / "learned")
    drafts = (first, "local:ngram")
    plan = plan_of("target", drafts, 4, options, drafts if chosen else ())
    listen = "127.0.0.1:1"
    with serving(lambda: plan, options, listen, listen, tmp_path / "log", Console(file=io.StringIO())) as served:
        assert [each for flag, each in pairwise(verifier) if flag == "--drafter"] == list(drafts)[
            : 1 if attached else 2
        ]
        assert places == ([tmp_path / "learned"] if attached else [])
        assert (served.learner is not None) == ("--share-traffic" in verifier) == learn


def test_chosen_drafters_draft_together(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan_of("target", ("small", "local:ngram"), 4, CPU, ("small", "local:ngram"))
    assert together_flags(chosen) == ("--drafters-per-request", "2")
    assert together_flags(plan_of("target", ("small", "local:ngram"), 4, CPU)) == ()
    assert together_flags(plan_of("target", ("local:ngram",), 4, CPU, ("local:ngram",)), has_head=True) == (
        "--drafters-per-request",
        "2",
    )
    monkeypatch.setenv("DRAFTWIRE_DRAFTERS_PER_REQUEST", "1")
    assert together_flags(chosen) == ()
