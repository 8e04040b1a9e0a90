"""Tries installed distributions: starts their verifier, drafter and gateway, and generates a text through each.

    python scripts/release/try_installation.py --services ENVIRONMENT/bin --sdk ENVIRONMENT/bin --models models

The SDK may be in an environment of its own, without torch. Nothing of this checkout is used but the models. The text
with a drafter has to be the same as without one, by the SDK's synchronous and asyncio clients and through the gateway.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

SECONDS = 240
"""Longest wait for a start or an answer; machines of CI are slow."""
PROMPT, OPTIONS = "def fib(n):", {"max_tokens": 24, "seed": 7, "temperature": 0.8}
GENERATE = """
import asyncio, json, sys
import draftwire

address, prompt, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
always = draftwire.Speculation(planning="always")

async def generate():
    async with draftwire.AsyncClient(address) as client:
        return await client.generate(prompt, speculation=always, **options)

with draftwire.Client(address) as client:
    plain = client.generate(prompt, speculation=draftwire.Speculation(enabled=False), **options)
    drafted = client.generate(prompt, speculation=always, **options)
again = asyncio.run(generate())
told = [{"text": each.text, "draft_tokens": each.speculation.draft_tokens} for each in (plain, drafted, again)]
print(json.dumps({"generated": told, "modules": sorted(sys.modules)}))
"""


class TrialError(Exception):
    """Raised if an installation does not work; the message says why."""


def try_installation(services: Path, sdk: Path, models: Path) -> str:
    """Returns the text that all ways have given. Raises TrialError."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = ("--threads", "1", "--model")
        drafter, verifier, gateway = (_free_address() for _ in range(3))
        start = [
            (drafter, "draftwire-drafter", *model, str(models / "draft")),
            (verifier, "draftwire-verifier", *model, str(models / "target"), "--drafter", drafter),
            (gateway, "draftwire-gateway", "--verifier", verifier),
        ]
        for address, program, *flags in start:
            stack.enter_context(_running(services / program, place, "--listen", address, *flags))
        _wait(services / "draftwire", place, drafter, verifier, f"http://{gateway}/health")
        done = _run(place, str(sdk / "python"), "-c", GENERATE, verifier, PROMPT, json.dumps(OPTIONS))
        told = json.loads(done)
        plain, *drafted = told["generated"]
        for each in drafted:
            if each["text"] != plain["text"] or not each["draft_tokens"]:
                raise TrialError(f"without speculation: {plain}; with it: {each}")
        if others := {"torch", "numpy"} & set(told["modules"]):
            raise TrialError(f"the SDK imports {', '.join(sorted(others))}")
        answer = _complete(f"http://{gateway}/v1/completions")
        if answer != plain["text"]:
            raise TrialError(f"through the gateway: {answer!r}; by the SDK: {plain['text']!r}")
    return str(plain["text"])


@contextmanager
def _running(program: Path, place: Path, *flags: str) -> Iterator[None]:
    """Runs a service until the end, which has to be a clean one."""
    log = place / f"{program.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, *flags], cwd=place, env=environment(), stdout=output, stderr=output)
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        sys.stderr.write(log.read_text(errors="replace"))
        raise
    process.send_signal(signal.SIGTERM)
    if status := process.wait(SECONDS):
        raise TrialError(f"{program.name} ended with status {status}:\n{log.read_text(errors='replace')}")


def _wait(draftwire: Path, place: Path, *addresses: str) -> None:
    """Waits until all serve, as their health checks say."""
    deadline = time.monotonic() + SECONDS
    for address in addresses:
        while True:
            probe = subprocess.run(
                [draftwire, "probe", "--address", address],
                cwd=place,
                env=environment(),
                capture_output=True,
                check=False,
            )
            if probe.returncode == 0:
                break
            if time.monotonic() > deadline:
                raise TrialError(f"{address} does not serve after {SECONDS} s: {probe.stderr.decode().strip()}")
            time.sleep(0.5)


def _complete(url: str) -> str:
    """The text that the gateway gives."""
    body = json.dumps({"model": "target", "prompt": PROMPT, **OPTIONS}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return str(json.load(answer)["choices"][0]["text"])
    except urllib.error.HTTPError as error:
        raise TrialError(f"the gateway: {error.code} {error.read().decode(errors='replace')}") from error


def _run(place: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=place, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrialError(f"{command[0]} ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    """Returns the variables of all programs: nothing leads to a checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRAFTWIRE_"))}
    return kept | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def main() -> None:
    """Tries the installation that the command line names, and prints the text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=Path, required=True, help="folder of the services' programs")
    parser.add_argument("--sdk", type=Path, required=True, help="folder of the SDK's programs; may be the same")
    parser.add_argument("--models", type=Path, required=True, help="folder with target and draft")
    options = parser.parse_args()
    try:
        print(PROMPT + try_installation(*(each.absolute() for each in (options.services, options.sdk, options.models))))
    except TrialError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
