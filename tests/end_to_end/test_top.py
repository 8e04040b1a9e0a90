"""``draftwire top`` on a terminal: a tmux session, real services, and running requests."""

import os
import re
import shlex
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from draftwire import Client
from tests.harness.lasting_address import lasting_address
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.suite.skipped import needs
from tests.harness.waiting import PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, needs("tmux")]


class Terminal:
    """A tmux session on a server of its own, in which one command runs."""

    def __init__(self, command: str, width: int, height: int) -> None:
        self._server = f"draftwire-{uuid.uuid4().hex}"
        environment = {"PYTHONPATH": str(ROOT / "sdk"), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment |= {"COLUMNS": "80", "LINES": "24"}  # some shells export these; the terminal's real size must win
        variables = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", str(width), "-y", str(height), *variables, command)

    def lines(self) -> list[str]:
        """Returns the lines on the screen."""
        return self._tmux("capture-pane", "-p").splitlines()

    def text(self) -> str:
        return "\n".join(self.lines())

    def press(self, key: str) -> None:
        self._tmux("send-keys", key)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._server, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


StartTop = Callable[..., Terminal]


@pytest.fixture
def start_top() -> Iterator[StartTop]:
    """Starts `draftwire top`; its exit status is shown when it ends."""
    terminals = []

    def start(*addresses: str, width: int = 120, height: int = 40) -> Terminal:
        flags = [part for address in addresses for part in ("--verifier", address)]
        top = shlex.join([sys.executable, "-m", "draftwire.cli", "top", "--interval", "0.2", *flags])
        terminals.append(Terminal(f"{top}; echo ended with $?; read line", width, height))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def shows(terminal: Terminal, look: Callable[[], bool], what: str) -> None:
    """Waits until `look` is true; a failure shows the terminal."""
    try:
        eventually(look, what)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{terminal.text()}") from None


@contextmanager
def requests(address: str) -> Iterator[None]:
    """Sends one request after another within the block."""
    ended = threading.Event()

    def ask() -> None:
        with Client(address, timeout=PATIENCE) as client:
            while not ended.is_set():
                with client.stream("def f(x):\n", max_tokens=1000, ignore_eos=True, temperature=0.8, seed=1) as stream:
                    while not ended.is_set() and next(stream, None) is not None:
                        pass

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()


def row(terminal: Terminal, table: str, name: str) -> dict[str, str]:
    """Returns a table's row that begins with a name, by heading; empty if it is not shown."""
    lines = iter(terminal.lines())
    headings = next((line.replace("KV SLOTS", "KV-SLOTS").split() for line in lines if line.startswith(table)), [])
    for line in lines:
        if not line.strip():
            break
        if line.startswith(name):
            return dict(zip(headings, line.split(), strict=False))
    return {}


def test_figures_move_and_a_swap_is_seen(
    verifier: ServiceProcess, client: Client, good_drafter: str, bad_drafter: str, start_top: StartTop
) -> None:
    address = verifier.address
    client.drafters.attach(bad_drafter, "early")
    client.drafters.attach(good_drafter, "good")
    with requests(address):
        top = start_top(address)
        shows(top, lambda: row(top, "VERIFIER", address).get("RUN") == "1", "the request is shown")
        shows(top, lambda: re.search("[1-9]", row(top, "VERIFIER", address).get("TOK/S", "")) is not None, "a rate")
        shows(top, lambda: row(top, "VERIFIER", address).get("STATE") == "ready", "it is ready")
        figures: set[str] = set()
        shows(top, lambda: figures.add(row(top, "VERIFIER", address).get("TOK/S", "")) or len(figures) > 3, "they move")
        shows(top, lambda: {"early", "good"} <= {line.split(" ")[0] for line in top.lines()}, "the drafters are shown")

        client.drafters.swap("early", "good")
        shows(top, lambda: "early is detached" in top.text(), "the swap is told")
        shows(top, lambda: not row(top, "DRAFTER", "early") and bool(row(top, "DRAFTER", "good")), "it has gone")
        shows(top, lambda: row(top, "DRAFTER", "good").get("SEQS") == "1", "the new one drafts")

        top.resize(60, 16)
        shows(
            top,
            lambda: (
                max(map(len, top.lines())) <= 60
                and "RUN" in top.text()
                and "DTYPE" not in top.text()
                and top.lines()[-1].startswith(" q  quit")
            ),
            "it fits",
        )
        top.resize(120, 40)
        shows(top, lambda: "DTYPE" in top.text(), "it widens")

        top.press("p")
        shows(top, lambda: "PAUSED" in top.text(), "p pauses")
        top.press("s")
        shows(top, lambda: "sort: name" in top.text(), "s sorts")
        top.press("q")
        # The previous screen is restored.
        shows(top, lambda: "ended with 0" in top.text() and "VERIFIER" not in top.text(), "q ends it")


def test_a_verifier_goes_and_comes_back(services: Services, start_top: StartTop) -> None:
    first = services.verifier("target", "--listen", lasting_address())
    address = first.address
    top = start_top(address)
    shows(top, lambda: row(top, "VERIFIER", address).get("STATE") == "ready", "it is there")
    first.kill()
    shows(top, lambda: row(top, "VERIFIER", address).get("STATE") == "unreachable", "it is gone")
    shows(top, lambda: "1 unreachable" in top.lines()[0] and "cannot be reached" in top.text(), "it is told")
    services.verifier("target", "--listen", address)
    shows(top, lambda: row(top, "VERIFIER", address).get("STATE") == "ready", "it is there again")
    shows(top, lambda: "was restarted" in top.text(), "it is told")
    top.press("C-c")
    shows(top, lambda: "ended with 130" in top.text(), "Ctrl-C ends it")


def test_without_a_terminal(verifier: ServiceProcess) -> None:
    """Without a terminal it prints plain text for each reading, until its output is closed."""
    command = [sys.executable, "-m", "draftwire.cli", "top", "--interval", "0.1", "--verifier", verifier.address]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT / "sdk")}
    ) as top:
        assert top.stdout is not None
        heads = 0
        while heads < 3:
            line = top.stdout.readline()
            assert line
            assert b"\x1b" not in line
            heads += line.startswith(b"draftwire top")
        top.stdout.close()
        assert top.wait(PATIENCE) == 1
