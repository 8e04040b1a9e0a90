"""Whether this machine can serve a target with the settings given: yes or no, with reasons, before anything is loaded.

Only the model's configuration and the sizes of its tensors are read, though a model of the hub is downloaded for that.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoConfig, PretrainedConfig

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.device.gpu import memory
from draftwire_core.engine.device.host import free_memory
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.engine.kernels.library import is_built
from draftwire_core.engine.model.cuda.kernel_support import missing
from draftwire_core.engine.model.described_model import context_of
from draftwire_core.engine.model.reading.read_model import resolve_dtype
from draftwire_core.runtime.process.rank_settings import Device
from draftwire_core.suggesting.capacity import KV_BYTES, Q4_0, Q8_0
from draftwire_core.suggesting.device_roofs import read_bandwidth
from draftwire_core.suggesting.target_facts import TargetFacts, facts_of
from verifier_service.settings import VerifierSettings

_STEP_BYTES = 3 << 29
"""Memory of a GPU next to weights and cache: CUDA graphs, the largest step, and what is left over."""
_NARROWED = {"q8_0": Q8_0 / 16, "q4_0": Q4_0 / 16}
"""Bytes of weights that are quantised at load, as a share of theirs in bfloat16."""
_REACHED = 0.6
"""Share of the memory's speed that plain decoding on an H200 reached (benchmarks/results/gpu)."""
_COPIED = 1 << 30
"""Bytes that are copied to measure the speed of a GPU's memory."""
_COPIES = 5


class Finding(NamedTuple):
    """The answer to one question."""

    question: str
    good: bool
    about: str


def preflight(settings: VerifierSettings, device: Device) -> int:
    """Prints a line for each question, and yes or no; returns the exit status, 0 for yes."""
    wrong = []
    for finding in findings(settings, device):
        print(f"{'yes' if finding.good else 'no ':3}  {finding.question}: {finding.about}", flush=True)
        if not finding.good:
            wrong.append(finding.question)
    print(f"no: {', '.join(wrong)}" if wrong else f"yes: {settings.model} can be served here")
    return 1 if wrong else 0


def findings(settings: VerifierSettings, device: Device) -> Iterator[Finding]:
    """Yields the answers, of which later ones are left out if an earlier one makes them impossible."""
    place = torch.device(settings.device)
    cuda = f", CUDA {torch.version.cuda}" if torch.version.cuda else ", without CUDA"
    yield Finding(
        "driver and torch", not device.unused, f"{device.unused or device.about}; torch {torch.__version__}{cuda}"
    )
    yield _compiler() if place.type == "cuda" else _library()
    try:
        checkpoint = Checkpoint.find(settings.model)
        facts = facts_of(checkpoint)
        config = None if facts.gguf else _config(checkpoint, settings)
        context = 0 if config is None else context_of(config, settings.context_length, checkpoint.name)
    except ModelLoadError as error:
        yield Finding("model", False, str(error))
        return
    share = _NARROWED.get(settings.weights, 1.0) / settings.tensor_parallel
    weights = round(facts.weight_bytes * share)
    yield Finding("model", True, f"{facts.architecture}, {facts.layers} layers, {weights / 1e9:.1f} GB of weights")
    if place.type == "cuda" and config is not None:
        lacking = missing(place, resolve_dtype(settings.dtype, place), config, context)
        good = lacking is None or settings.allow_slow_layers
        yield Finding("kernels", good, lacking or "the smallest one compiles and runs")
    yield _memory(settings, place, weights, facts.kv_values * KV_BYTES // settings.tensor_parallel)
    yield _speed(place, round(facts.bytes_per_token * share), facts)


def _compiler() -> Finding:
    """Whether Triton can compile the launchers of its kernels."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if compiler is None:
        return Finding("compiler", False, "there is neither gcc nor clang, which Triton's kernels need")
    return Finding("compiler", header.exists(), compiler if header.exists() else f"there is no {header} (python3-dev)")


def _library() -> Finding:
    built = is_built()
    return Finding("compiler", True, "the compiled library is there" if built else "no compiled library: slower")


def _config(checkpoint: Checkpoint, settings: VerifierSettings) -> PretrainedConfig:
    """The configuration of the text decoder. Raises ModelLoadError."""
    try:
        config = AutoConfig.from_pretrained(checkpoint.directory, trust_remote_code=settings.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"model {checkpoint.name}: {error}") from error
    found: PretrainedConfig = config.get_text_config(decoder=True)
    return found


def _memory(settings: VerifierSettings, place: torch.device, weights: int, slot_bytes: int) -> Finding:
    """slot_bytes: of a KV slot at one rank; 0 if the files do not say it."""
    if place.type == "cuda":
        free, total = memory(place)
        share = settings.gpu_memory_utilization if not settings.kv_slots else 1.0
        room = free - round((1 - share) * total) - weights - _STEP_BYTES
        told = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB are free"
    else:
        free = free_memory() or 0
        room, told = free - weights, f"{free / 1e9:.1f} GB are free"
    if not slot_bytes:
        return Finding("memory", room > 0, f"{told}; the KV cache's size is found when the model is loaded")
    slots = max(0, room // slot_bytes)
    wanted = settings.kv_slots or settings.least_slots
    needed = f"{wanted} KV slots" if settings.kv_slots else f"at least {wanted} KV slots"
    return Finding(
        "memory", slots >= wanted, f"{told}: with the weights there is room for {slots} KV slots; needed: {needed}"
    )


def _speed(place: torch.device, read: int, facts: TargetFacts) -> Finding:
    """The expected speed of plain decoding, one sequence at a time. read: bytes that a token reads."""
    if not read:
        return Finding("speed", True, f"unknown, since {facts.source} does not say what a token reads")
    speed = read_bandwidth() if place.type == "cpu" else _copied_bytes_per_second(place)
    most = speed / read
    expected = f"about {_REACHED * most:.3g}" if place.type == "cuda" else f"at most {most:.3g}"
    return Finding("speed", True, f"{expected} tokens/s without drafts, by {speed / 1e9:.0f} GB/s of memory")


def _copied_bytes_per_second(place: torch.device) -> float:
    """Bytes that a GPU reads and writes per second, by the best of some copies."""
    source = torch.zeros(_COPIED, dtype=torch.uint8, device=place)
    target, times = torch.empty_like(source), []
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(place)
        times.append(time.perf_counter() - started)
    return 2 * len(source) / min(times)
