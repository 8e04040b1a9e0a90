"""The served processes: how they are started, and in which order they end."""

import io
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from draftwire.cli.failure import Failure
from draftwire_tools.serve import running
from draftwire_tools.serve.device import Device
from draftwire_tools.serve.plan import Options, plan_of
from draftwire_tools.serve.running import cache_flags, serving

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


def test_the_gateway_starts_first_and_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)
    monkeypatch.setattr(running, "_attach", lambda *_: None)
    plan = plan_of("target", ("small", "smaller"), 4, CPU)
    listen = "127.0.0.1:1"
    with serving(plan, listen, listen, tmp_path / "log", Console(file=io.StringIO())):
        started = [f"start {name}" for name in ("gateway", "drafter-small", "drafter-smaller", "verifier")]
        assert events == started
    ends = ("gateway", "verifier", "drafter-smaller", "drafter-small")
    assert events[4:] == [f"{what} {name}" for name in ends for what in ("end", "wait for")]


def test_the_gateway_ends_first_if_starting_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)

    def refuse(*_: Any) -> None:
        raise Failure("it cannot draft")

    monkeypatch.setattr(running, "_attach", refuse)
    listen = "127.0.0.1:1"
    with (
        pytest.raises(Failure, match="it cannot draft"),
        serving(plan_of("target", (), 4, CPU), listen, listen, tmp_path / "log", Console(file=io.StringIO())),
    ):
        pytest.fail("it does not serve")
    assert [each for each in events if each.startswith("end")] == ["end gateway", "end verifier"]


def test_a_gateway_that_does_not_listen_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = children(monkeypatch)
    monkeypatch.setattr(Child, "is_listening", lambda _: False)
    monkeypatch.setattr(running, "_LISTEN_SECONDS", 0.0)
    listen = "127.0.0.1:1"
    with (
        pytest.raises(Failure, match=r"^gateway: does not listen on 127\.0\.0\.1:1"),
        serving(plan_of("target", (), 4, CPU), listen, listen, tmp_path / "log", Console(file=io.StringIO())),
    ):
        pytest.fail("it does not serve")
    assert events == ["start gateway", "end gateway", "wait for gateway"]


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
