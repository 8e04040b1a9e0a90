"""Packages that a service needs in addition to the SDK's, and those that a model on a CPU never uses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NEEDED = (
    "gguf",
    "grpc_health",
    "grpc_reflection",
    "h11",
    "huggingface_hub",
    "llguidance",
    "numpy",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "safetensors",
    "structlog",
    "tokenizers",
    "torch",
    "transformers",
    "uvloop",
)
"""Top-level packages of the extra `serve`. This module imports none of them."""


UNNEEDED = ("scipy", "sklearn", "triton")
"""scipy: losses of object detection. sklearn: thresholds of transformers' own assisted generation. triton: compilers
for GPUs. Together they take more than 110 MB."""


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
