"""A container of an image built by buildah, run by runc as in docker-compose.yml: with a read-only root, no
capabilities, no new privileges, limits on memory and processes, and the system call filter of container engines."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system_calls import default_filter

COMMAND_SECONDS = 120.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.5
MEBIBYTE = 1024 * 1024


def buildah(*arguments: str) -> str:
    """Runs buildah and returns its output."""
    done = subprocess.run(["buildah", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


@dataclass(frozen=True)
class Limits:
    """Resource limits of a container."""

    memory_mebibytes: int
    processes: int


class Container:
    """A container that runs the image's own program."""

    def __init__(self, image: str, place: Path, limits: Limits) -> None:
        """image: its name. place: an empty directory for runc's files and the log; its name becomes the container's."""
        self.settings: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
        self.log = place / "log"
        self.name = place.name
        self._place = place
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._working = buildah("from", image)

    def start(
        self, environment: Mapping[str, str], mounts: Sequence[Mapping[str, Any]] = (), network: int | None = None
    ) -> None:
        """Starts the program.

        environment: variables beyond those of the image. mounts: in runc's form. network: the process whose network it
        shares; without one it gets a network with loopback only.
        """
        subprocess.run(["runc", "spec", "--bundle", self._place], check=True)
        file = self._place / "config.json"
        spec = json.loads(file.read_text())
        self._set(spec, environment, mounts, network)
        file.write_text(json.dumps(spec))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._runc("run", "--bundle", str(self._place), "--pid-file", str(self._pid_file), self.name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def pid(self) -> int:
        """Id of the program's process on this machine, once there is one."""
        deadline = time.monotonic() + COMMAND_SECONDS
        while not (self._pid_file.exists() and self._pid_file.read_text()):
            if not self.runs() or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} has not started: {self.log.read_text()}")
            time.sleep(POLL_SECONDS)
        return int(self._pid_file.read_text())

    def runs(self) -> bool:
        """Whether the program is running."""
        return self._process is not None and self._process.poll() is None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command next to the program, with its rights and variables, to the command's end."""
        told = self._runc("exec", self.name, *command)
        return subprocess.run(told, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)

    def wait(self) -> int:
        """Waits until the program ends by itself; returns its exit status."""
        assert self._process is not None
        return self._process.wait(COMMAND_SECONDS)

    def stop(self) -> int:
        """Ends the program by its image's stop signal; returns its exit status."""
        assert self._process is not None
        subprocess.run(self._runc("kill", self.name, self.settings["StopSignal"]), check=True)
        return self._process.wait(STOP_SECONDS)

    def remove(self) -> None:
        """Removes everything, including the program."""
        if self.runs():
            print(self.log.read_text(), file=sys.stderr)
            subprocess.run(self._runc("kill", self.name, "SIGKILL"), check=False)
            self.wait()
        buildah("umount", self._working)
        buildah("rm", self._working)

    @property
    def _pid_file(self) -> Path:
        return self._place / "pid"

    def _hosts(self) -> Path:
        """Returns the hosts file that engines mount, without which localhost does not resolve."""
        file = self._place / "hosts"
        file.write_text("127.0.0.1 localhost\n::1 localhost\n")
        return file

    def _runc(self, *arguments: str) -> list[str]:
        return ["runc", "--root", str(self._place / "runc"), *arguments]

    def _set(
        self,
        spec: dict[str, Any],
        environment: Mapping[str, str],
        mounts: Sequence[Mapping[str, Any]],
        network: int | None,
    ) -> None:
        user, group = (int(part) for part in self.settings["User"].split(":"))
        spec["root"] = {"path": buildah("mount", self._working), "readonly": True}
        spec["process"] |= {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": self.settings["Entrypoint"],
            "env": [*(self.settings.get("Env") or ()), *(f"{name}={value}" for name, value in environment.items())],
            "cwd": self.settings.get("WorkingDir") or "/",
            "capabilities": {},
            "noNewPrivileges": True,
        }
        temporary = ["nosuid", "nodev", f"size={256 * MEBIBYTE}"]
        spec["mounts"] += [
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*temporary, "mode=1777"]},
            *(
                {
                    "destination": volume,
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": [*temporary, "mode=755", f"uid={user}", f"gid={group}"],
                }
                for volume in self.settings.get("Volumes") or ()
            ),
            {"destination": "/etc/hosts", "type": "bind", "source": str(self._hosts()), "options": ["bind", "ro"]},
            *mounts,
        ]
        spec["linux"]["seccomp"] = default_filter()
        spec["linux"]["resources"] |= {
            "memory": {"limit": self._limits.memory_mebibytes * MEBIBYTE},
            "pids": {"limit": self._limits.processes},
        }
        if network is not None:
            others = [each for each in spec["linux"]["namespaces"] if each["type"] != "network"]
            spec["linux"]["namespaces"] = [*others, {"type": "network", "path": f"/proc/{network}/ns/net"}]
