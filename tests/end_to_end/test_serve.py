"""`draftwire serve` with the bundled models: one command serves, says where, and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from draftwire import Client
from draftwire_core.training.learning.texts.text_store import TextStore
from tests.harness import processes
from tests.harness.checkout import MODELS, ROOT
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually

pytestmark = pytest.mark.slow

SERVING = "serving; Ctrl-C stops it"


class Command:
    """A running `draftwire serve`."""

    def __init__(self, place: Path, *flags: str) -> None:
        self.log = place / "draftwire.log"
        self.output = place / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "draftwire.cli", "serve", "--threads", "2", "--log", str(self.log), *flags],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | processes.ENVIRONMENT,
                start_new_session=True,
            )

    def told(self) -> str:
        return self.output.read_text(errors="replace")

    def line(self, name: str) -> str:
        (line,) = (each for each in self.told().splitlines() if each.startswith(name + " "))
        return line.removeprefix(name).strip()

    def children(self) -> list[int]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid:
                found.append(int(stat.parent.name))
        return found

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def serving(place: Path, *flags: str) -> Iterator[Command]:
    command = Command(place, *flags)
    try:
        eventually(
            lambda: command.process.poll() is not None or SERVING in command.told(),
            "everything serves",
            patience=LONG_PATIENCE,
        )
        assert command.process.poll() is None, command.told()
        yield command
    finally:
        if command.process.poll() is None:
            children = command.children()
            command.process.kill()
            command.process.wait()
            for pid in children:
                os.kill(pid, signal.SIGKILL)


def complete(endpoint: str, **fields: Any) -> str:
    body = {"prompt": "def read_config(path):\n", "model": "target", "max_tokens": 40, "temperature": 0.0} | fields
    request = urllib.request.Request(
        f"{endpoint}/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text: str = json.loads(answer.read())["choices"][0]["text"]
    return text


def ask_as_documented(endpoint: str) -> str:
    """Sends the request of docs/models.md."""
    (body,) = re.findall(r"-d '(.*)'", (ROOT / "docs" / "models.md").read_text(encoding="utf-8"))
    request = urllib.request.Request(
        f"{endpoint}/chat/completions", body.encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text: str = json.loads(answer.read())["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_model_with_a_draft_model(tmp_path: Path, number: int) -> None:
    listen = "127.0.0.1:0"
    with serving(
        tmp_path, "--model", str(MODELS / "target"), "--draft", str(MODELS / "draft"), "--listen", listen
    ) as command:
        endpoint = command.line("endpoint")
        text = complete(endpoint)
        assert text
        assert ask_as_documented(endpoint)
        with urllib.request.urlopen(command.line("console"), timeout=PATIENCE) as page:
            assert b"<html" in page.read().lower()
        with Client(command.line("verifier").partition(" ")[0], timeout=PATIENCE) as client:
            (drafter,) = client.drafters.list()
            assert (drafter.name, drafter.state) == ("draft", "ready")
            plain = client.generate("def read_config(path):\n", max_tokens=40, temperature=0.0)
        assert plain.text == text
        children = command.children()
        assert len(children) >= 3
        assert command.end(number) == 0, command.told()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "nothing is left")
    log = command.log.read_text()
    for name in ("verifier", "drafter", "gateway"):
        assert f"{name} | " in log
    assert command.told().rstrip().endswith("stopped")


def test_a_draft_model_in_the_verifier_learns(tmp_path: Path) -> None:
    draft, place = f"local:draft?model={MODELS / 'draft-other'}", tmp_path / "learned"
    flags = ("--draft", draft, "--listen", "127.0.0.1:0", "--learn", "--learn-dir", str(place))
    flags += ("--learn-probabilities",)
    with serving(tmp_path, "--model", str(MODELS / "target"), *flags) as command:
        assert command.line("learning") == f"{place}; texts stay on this machine"
        eventually(lambda: "learner | following" in command.log.read_text(), "it follows", patience=LONG_PATIENCE)
        assert complete(command.line("endpoint"))
        eventually(lambda: any(place.glob("texts/*.texts")), "the text is stored")
        children = command.children()
        assert command.end() == 0, command.told()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "nothing is left")
    of = json.loads((place / "texts" / "texts.json").read_text())["target"]
    texts = TextStore(place / "texts", of, most_bytes=1 << 20, warn=pytest.fail).texts()
    assert texts
    assert all(text.top.top for text in texts), "the verifier has reported the likeliest tokens"


def test_without_a_draft_model_in_the_verifier_nothing_learns(tmp_path: Path) -> None:
    flags = ("--draft", "local:ngram", "--listen", "127.0.0.1:0", "--learn")
    with serving(tmp_path, "--model", str(MODELS / "target"), *flags) as command:
        assert command.line("learning").startswith("nothing can learn: there is no draft model in the verifier")
        assert command.end() == 0


def test_the_loss_of_a_drafter_is_told_and_serving_goes_on(tmp_path: Path) -> None:
    flags = ("--model", str(MODELS / "target"), "--draft", str(MODELS / "draft"), "--listen", "127.0.0.1:0")
    with serving(tmp_path, *flags) as command:
        (drafter,) = (
            pid for pid in command.children() if "drafter_service" in Path(f"/proc/{pid}/cmdline").read_text()
        )
        os.kill(drafter, signal.SIGKILL)
        eventually(lambda: "serving continues without it" in command.told(), "it is told")
        assert complete(command.line("endpoint"))
        assert command.end() == 0


def test_a_drafter_that_cannot_draft_for_the_target_is_told_with_the_remedy(tmp_path: Path) -> None:
    draft = shutil.copytree(MODELS / "draft", tmp_path / "foreign")
    text = (draft / "tokenizer.json").read_text(encoding="utf-8")
    changed = json.loads(text)
    vocabulary = changed["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (draft / "tokenizer.json").write_text(json.dumps(changed), encoding="utf-8")
    command = Command(tmp_path, "--model", str(MODELS / "target"), "--draft", str(draft), "--listen", "127.0.0.1:0")
    assert command.process.wait(LONG_PATIENCE) == 1
    assert SERVING not in command.told()
    last = command.told().splitlines()[-1]
    assert last.startswith(f"draftwire: --draft {draft}: target has another tokenizer than foreign")
    assert "--target-tokenizer" in last


def test_without_a_draft_the_drafter_is_chosen_by_the_targets_files(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", str(MODELS / "target"), "--listen", "127.0.0.1:0") as command:
        assert "SmolLM2-135M-Instruct: the target is too small for it to pay" in command.line("auto")
        assert command.line("drafters") == "local:ngram"
        assert command.line("note").startswith("local:ngram speeds up text that repeats itself")
        assert complete(command.line("endpoint"))
        assert command.end() == 0


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = Command(tmp_path, "--model", str(MODELS / "target"), "--listen", address)
        assert command.process.wait(PATIENCE) == 1
    assert command.told() == (
        f"draftwire: --listen: cannot listen on {address}: another process listens there; "
        "choose another address, or port 0 for a free one\n"
    )


def test_a_verifier_that_is_killed_is_told_in_a_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", str(MODELS / "target"), "--listen", "127.0.0.1:0") as command:
        (verifier,) = (
            pid for pid in command.children() if "verifier_service" in Path(f"/proc/{pid}/cmdline").read_text()
        )
        os.kill(verifier, signal.SIGKILL)
        assert command.process.wait(PATIENCE) == 1
        assert command.told().splitlines()[-1] == (
            "draftwire: verifier was killed (signal 9); out of memory is the usual cause"
        )


def test_what_cannot_be_served_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ("--draft", str(MODELS / "draft"), "--listen", "127.0.0.1:0")
    command = Command(tmp_path, "--model", str(tmp_path / "none"), *flags)
    children: set[int] = set()
    eventually(lambda: children.update(command.children()) or command.process.poll() is not None, "it has ended")
    assert command.process.returncode == 1
    assert "verifier ended with code 1" in command.told()
    assert "no such directory" in command.told()
    assert len(children) >= 2, "the verifier and the drafter were started"
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "nothing is left")
