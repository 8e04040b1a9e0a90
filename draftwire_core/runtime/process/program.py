"""The entry point of a service or the gateway, which names missing packages before anything imports them; the packages
that a service needs in addition to the SDK's, and those that a model on a CPU never uses."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwire._extras import distribution, how_to_install, missing

NEEDED = (
    "gguf",
    "grpc_health",
    "grpc_reflection",
    "h11",
    "huggingface_hub",
    "llguidance",
    "numpy",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "safetensors",
    "structlog",
    "tokenizers",
    "torch",
    "transformers",
    "uvloop",
    "yaml",
)
"""Top-level packages of the extra `serve`. This module imports none of them."""
UNNEEDED = ("scipy", "sklearn", "triton")
"""scipy: losses of object detection. sklearn: thresholds of transformers' own assisted generation. triton: compilers
for GPUs. Together they take more than 110 MB."""

NOT_INSTALLED = 1
"""Exit status if packages are missing, as for other causes that an operator can fix."""


def run_program(module: str, *, extra: str, needed: Sequence[str]) -> int:
    """Runs ``main`` of a module and returns the exit status.

    Args:
        module: the module with the program, whose imports take seconds.
        extra: the extra of the distribution that installs the packages needed.
        needed: top-level packages that the program needs in addition to the SDK's.
    """
    for closed in [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]:
        # Else the log could not be written, and a socket would take the number to which libraries write their errors.
        setattr(sys, closed, open(os.devnull, "r+"))  # noqa: SIM115, PTH123
    # Until the program handles signals itself, Ctrl-C during an import should not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == 1:  # in a container: the first process never gets a signal that it does not handle
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: os._exit(128 + number))
    if lacking := missing(needed):
        print(
            f"{program_name()}: requires {distribution(extra)}[{extra}], but {', '.join(lacking)} is missing: "
            f"{how_to_install(extra)}",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    status: int = importlib.import_module(module).main()
    return status


def program_name() -> str:
    """Returns the command that started this process, for messages: a script's name, or ``python -m PACKAGE``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.endswith(".__main__"):
        return f"python -m {spec.parent}"
    return Path(sys.argv[0]).name


@contextmanager
def without_unneeded_packages(device: str) -> Iterator[None]:
    """Imports within the context run as if these packages were not installed, for a model on a CPU.

    Packages that are imported already stay. After the context anybody may import them.
    """
    hidden = [name for name in UNNEEDED if name not in sys.modules] if device == "cpu" else []
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))  # what Python takes as: there is no such module
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
