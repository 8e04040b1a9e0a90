"""A newcomer's first steps with a release: installs it, serves a model, asks it by OpenAI's client, swaps a drafter.

Everything is done by commands in an environment with nothing but the release, and the commands are counted: three to
the first answer of a chat. The drafter is swapped and the model checked while it serves; the answer stays the same.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.release.try_installation import TrialError, environment, try_installation

KINDS = {"wheels": "--only-binary", "source distributions": "--no-binary"}
"""Things that a release installs from, with pip's option for it."""
DISTRIBUTIONS = "draftwire,draftwire-services"
MOST_COMMANDS = 3
"""To the first answer of a chat."""
SECONDS = 1800.0
"""Longest time of a command; machines of CI are slow, and torch is large."""
SERVING = "serving; Ctrl-C stops it"
ASK = """
import sys
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none")
(model,) = client.models.list().data
question = [{"role": "user", "content": "Name three rivers."}]
answer = client.chat.completions.create(model=model.id, messages=question, max_tokens=60, temperature=0)
print(answer.choices[0].message.content)
"""


class Newcomer:
    """A person with a clean environment."""

    def __init__(self, place: Path) -> None:
        """place: an empty folder for the environment and the logs."""
        self.programs = place / "bin"
        self.commands = 0
        """How many commands were given."""
        self._place = place
        self._variables = environment()
        subprocess.run([sys.executable, "-m", "venv", place], env=self._variables, check=True)

    def install(self, release: Path, *requirements: str, kind: str) -> None:
        """Installs packages: draftwire's from a folder, in one of KINDS, others by pip's settings. Raises TrialError.

        The variable TORCH_INDEX_URL names another index for torch, as for `make setup`.
        """
        index = os.environ.get("TORCH_INDEX_URL")
        options = ["--quiet", "--disable-pip-version-check", KINDS[kind], DISTRIBUTIONS, "--find-links", str(release)]
        self.run("pip", "install", *options, *(("--extra-index-url", index) if index else ()), *requirements)

    def run(self, program: str, *arguments: str) -> str:
        """Runs a command to its end; returns what it prints. Raises TrialError."""
        self.commands += 1
        command = [self.programs / program, *arguments]
        done = subprocess.run(
            command, cwd=self._place, env=self._variables, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode:
            raise TrialError(f"{shlex.join((program, *arguments))} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    @contextmanager
    def serving(self, model: Path) -> Iterator[str]:
        """Serves a model at free ports, which the later commands know; yields the endpoint. Raises TrialError."""
        self.commands += 1
        output = self._place / "serve.log"
        ports = ("--listen", "127.0.0.1:0", "--verifier-listen", "127.0.0.1:0")
        with output.open("wb") as log:
            process = subprocess.Popen(
                [self.programs / "draftwire", "serve", "--model", model, *ports],
                cwd=self._place, env=self._variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + SECONDS
            while SERVING not in (told := output.read_text(errors="replace")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise TrialError(f"draftwire serve does not serve: {told}")
                time.sleep(0.5)
            lines = {words[0]: words[1] for line in told.splitlines() if len(words := line.split()) > 1}
            self._variables["DRAFTWIRE_VERIFIER"] = lines["verifier"]
            yield lines["endpoint"]
            process.terminate()
            if status := process.wait(SECONDS):
                raise TrialError(f"draftwire serve ended with status {status}: {output.read_text(errors='replace')}")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(SECONDS)


def first_steps(newcomer: Newcomer, release: Path, version: str, model: Path, *, kind: str) -> int:
    """Takes the first steps with a release; returns after how many commands a chat was answered. Raises TrialError.

    Args:
        newcomer: who takes them.
        release: the folder with the release's files.
        version: its version.
        model: a checkpoint to serve.
        kind: what is installed, of KINDS.
    """
    newcomer.install(release, f"draftwire-services[serve,gateway]=={version}", "openai", kind=kind)
    with newcomer.serving(model) as endpoint:
        answer = newcomer.run("python", "-c", ASK, endpoint)
        commands = newcomer.commands
        if not answer or commands > MOST_COMMANDS:
            raise TrialError(f"the first answer of a chat, after {commands} commands: {answer!r}")
        newcomer.run("draftwire", "drafters", "swap", "local:ngram", "local:suffix")
        if (again := newcomer.run("python", "-c", ASK, endpoint)) != answer:
            raise TrialError(f"with another drafter the answer is {again!r}, not {answer!r}")
        newcomer.run("draftwire", "check", "--requests", "2", "--max-tokens", "16", "--seeds", "0")
    return commands


def try_release(release: Path, version: str, models: Path) -> int:
    """Tries a release's wheels and source distributions: the first steps, the demo, the services one by one.

    Returns after how many commands a chat was answered. Raises TrialError.
    """
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            newcomer, programmer = Newcomer(Path(place) / "services"), Newcomer(Path(place) / "sdk")
            commands = first_steps(newcomer, release, version, models / "target", kind=kind)
            newcomer.run("draftwire", "demo")
            programmer.install(release, f"draftwire=={version}", kind=kind)
            try_installation(newcomer.programs, programmer.programs, models)
    return commands
