"""Runs the services of a compose file as local processes, each with the settings of its container."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from draftwire import Client
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.deploy.dockerfile import Dockerfile, Image
from tests.harness.lasting_address import lasting_address
from tests.harness.waiting import LONG_PATIENCE, eventually


def wait_for_drafters(client: Client) -> None:
    """Waits until both drafters of the compose file are ready."""
    wanted = {"drafter-1": "ready", "drafter-2": "ready"}
    eventually(lambda: {each.name: each.state for each in client.drafters.list()} == wanted, "both are ready")


class Running:
    """A service's process, with its container's environment and addresses on this machine."""

    def __init__(self, image: Image, address: str, environment: dict[str, str], log: Path) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTWIRE_")}
        self.address = address
        self.environment = own | environment | processes.ENVIRONMENT
        self.log = log
        self._healthcheck = image.healthcheck
        with log.open("wb") as output:
            self.process = processes.Popen(
                [sys.executable, *image.arguments_here],
                cwd=log.parent,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def probe(self, *options: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs the container's health check with further options and variables."""
        program, *arguments = self._healthcheck
        assert program == "draftwire"
        return processes.run(
            [sys.executable, "-m", "draftwire.cli", *arguments, *options],
            env=self.environment | (environment or {}),
            cwd=self.log.parent,
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            check=False,
        )

    def wait_healthy(self) -> None:
        """Waits until the health check succeeds."""
        deadline = time.monotonic() + LONG_PATIENCE
        while (probe := self.probe()).returncode != 0:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{probe.stderr}\n{self.log.read_text()}"
            time.sleep(0.2)

    def stop(self) -> int:
        """Stops the process with the images' stop signal and returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(LONG_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


@contextmanager
def running_services(services: Mapping[str, Any], place: Path) -> Iterator[dict[str, Running]]:
    """Starts those services of a file that are built from this repository; yields them by name once healthy.

    services: from `read_compose`. place: a directory for logs. Ports of containers are replaced by free ones, and their
    paths by those of the mounted files.
    """
    found = {name: each for name, each in services.items() if "build" in each}
    images = {name: Dockerfile(ROOT / "Dockerfile").image(each["build"]["target"]) for name, each in found.items()}
    here = {}
    for name, image in images.items():
        port = image.values("EXPOSE")[0].split()[0]
        here[f"{name}:{port}"] = lasting_address()

    def mapped(name: str, text: str) -> str:
        """Replaces ports and paths by those of this machine. Services listen on all its addresses, as in containers."""
        for there, address in here.items():
            text = text.replace(there, address)
            if there.startswith(f"{name}:"):
                old, new = there.rpartition(":")[2], address.rpartition(":")[2]
                text = re.sub(rf"(0\.0\.0\.0|127\.0\.0\.1|localhost):{old}\b", rf"\1:{new}", text)
        for mount in found[name].get("volumes", ()):
            source, target, *_ = mount.split(":")
            if text.startswith(f"{target}/"):
                text = f"{(ROOT / source).resolve()}{text.removeprefix(target)}"
        return re.sub(r"0\.0\.0\.0:909\d", "127.0.0.1:0", text)

    with ExitStack() as ends:
        started = {}
        for (name, service), address in zip(found.items(), here.values(), strict=True):
            own = {key: value for key, value in images[name].environment.items() if key.startswith("DRAFTWIRE_")}
            told = {key: mapped(name, value) for key, value in (own | service["environment"]).items()}
            started[name] = Running(images[name], address, told, place / f"{name}.log")
            ends.callback(started[name].stop)
        for each in started.values():
            each.wait_healthy()
        yield started
