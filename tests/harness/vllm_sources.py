"""The vLLMs that tests can read: that of this environment, that of `make test-vllm`, and wheels that were unpacked.

Wheels need not be installable here. Unpack them with `unzip vllm-0.33.0*.whl 'vllm/*' '*.dist-info/*' -d DIR`, and name
the directories in DRAFTWIRE_TEST_VLLM, separated by colons.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from benchmarks.peers.vllm_environment import vllm_environment


def unpacked() -> list[Path]:
    """Returns the directories into which wheels were unpacked."""
    return [Path(each) for each in os.environ.get("DRAFTWIRE_TEST_VLLM", "").split(":") if each]


def sources() -> list[Path]:
    """Returns the directories of all packages `vllm` that are found."""
    places = [each / "vllm" for each in unpacked()]
    installed = importlib.util.find_spec("vllm")
    if installed is not None and installed.origin is not None:
        places.append(Path(installed.origin).parent)
    if vllm_environment().ready:
        places += vllm_environment().place.glob("lib/python*/site-packages/vllm")
    return places
