"""Names that settings choose from, without torch: devices, kernels, weights and types of the KV cache.

The device is decided before a service loads anything. Torch, whose import takes seconds, is imported only where there
is an NVIDIA driver.
"""

from __future__ import annotations

import ctypes
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

QuantisedWeights = Literal["q8_0", "q4_0"]
"""Blocks of 32 inputs, quantised at load as GGUF does, to 8 or 4 bits with a scale per block."""

Weights = Literal["checkpoint", "int8", "int4", "q8_0", "q4_0"]
"""Weights of the linear layers: the checkpoint's, in the model's dtype; for drafters, 8-bit integers with a scale per
output or, on GPUs, 4-bit integers with a scale per 64 inputs of an output; or QuantisedWeights."""

TargetWeights = Literal["checkpoint", "q8_0", "q4_0"]
"""Weights that a target may have."""


KvDtype = Literal["auto", "float16", "q8_0"]
"""The model's dtype, float16, or 8-bit integers with a scale per 32 elements of a head."""


Kernels = Literal[
    "auto", "torch",
    "baseline", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx",
    "neon", "dotprod", "i8mm",
]  # fmt: skip
"""torch: the compiled library is not used. baseline: plain C. On x86, avx2 and avx512: the vectors that the library
uses; avxvnni: avx2 vectors, and avx512vnni, avx512bf16 and amx: avx512 vectors, with gemm kernels that use these
instructions. On ARM, neon, dotprod and i8mm: gemm kernels that use these instructions. auto: the last of these names
that the processor and the build support."""


AUTO = "auto"
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
_DRIVER = "libcuda.so.1"
_DEVICES = Path("/dev")
_DEVICE_FILES = ("nvidia[0-9]*", "dxg")
"""The files of GPUs: of NVIDIA's driver, and in Windows' subsystem for Linux."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that torch can use on this machine."""

    names: tuple[str, ...] = ()
    """Names of the GPUs, by number."""
    problem: str = ""
    """Why there is none."""
    files: tuple[str, ...] = ()
    """Files of GPUs that the machine has, whether or not torch can use them."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The device of a model, and how it came about."""

    device: str
    """cpu, cuda or cuda:N."""
    about: str
    """The same for people: with the GPU's name, or with the reason for the CPU."""
    unused: str = ""
    """Why a GPU of this machine is not used, though nothing asks for the CPU; empty if there is none, or if it is."""


class Cuda(Protocol):
    """The part of ``torch.cuda`` that is used."""

    def is_available(self) -> bool:
        """Returns whether torch can use a GPU."""

    def device_count(self) -> int:
        """Returns the number of GPUs."""

    def get_device_name(self, device: int) -> str:
        """Returns the name of a GPU."""


def choose_device(asked: str, gpus: Gpus, cpu_only: str = "") -> DeviceChoice:
    """Returns the device for ``--device``: a usable GPU for ``auto``, otherwise the CPU.

    Args:
        asked: auto, cpu, cuda or cuda:N.
        gpus: the machine's GPUs.
        cpu_only: the flags that need a CPU, if any; ``auto`` is then the CPU.

    Raises:
        ValueError: no device is called so, or a GPU was asked for that is not there. The message begins with the flag.
    """
    if _DEVICE.fullmatch(asked) is None:
        raise ValueError(f"--device: expected auto, cpu, cuda or cuda:N, got {asked!r}")
    if asked == "cpu":
        return DeviceChoice("cpu", "cpu")
    if asked == AUTO:
        if cpu_only:
            return DeviceChoice("cpu", f"cpu ({cpu_only} needs it)")
        if not gpus.names:
            unused = f"{', '.join(gpus.files)}: {gpus.problem}" if gpus.files else ""
            return DeviceChoice("cpu", f"cpu ({gpus.problem})", unused)
        return DeviceChoice("cuda", f"cuda ({gpus.names[0]})")
    if not gpus.names:
        raise ValueError(f"--device: {asked} cannot be used: {gpus.problem}; cpu or auto runs on the CPU")
    number = int(asked.partition(":")[2] or 0)
    if number >= len(gpus.names):
        raise ValueError(f"--device: there is no {asked}; torch sees {len(gpus.names)} GPU(s), numbered from 0")
    return DeviceChoice(asked, f"{asked} ({gpus.names[number]})")


def device_here(asked: str, cpu_only: str = "") -> DeviceChoice:
    """Returns the device for ``--device`` on this machine; see `choose_device`.

    Raises:
        ValueError: no device is called so, or a GPU was asked for that is not there.
    """
    needless = asked == "cpu" or (asked == AUTO and cpu_only)
    return choose_device(asked, Gpus() if needless else gpus_here(), cpu_only)


def gpus_here() -> Gpus:
    """Returns this machine's GPUs. Imports torch if there is an NVIDIA driver."""
    files = tuple(sorted(_device_files()))
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        if files:
            return Gpus((), f"the driver's library {_DRIVER} is not found (LD_LIBRARY_PATH)", files)
        return Gpus(problem="there is no NVIDIA driver here")
    import torch

    if torch.version.cuda is None:
        problem = f"torch {torch.__version__} was built without CUDA, though there is an NVIDIA driver"
        return Gpus((), problem, files)
    return replace(gpus_of(torch.cuda), files=files)


def _device_files() -> Iterator[str]:
    for pattern in _DEVICE_FILES:
        yield from (str(each) for each in _DEVICES.glob(pattern))


def gpus_of(cuda: Cuda) -> Gpus:
    """Returns the GPUs that ``torch.cuda`` can use."""
    with warnings.catch_warnings(record=True) as told:  # such as that the driver is too old
        warnings.simplefilter("always")
        available = cuda.is_available()
    if not available:
        reason = "".join(f": {' '.join(str(each.message).split())}" for each in told[:1])
        return Gpus(problem=f"torch sees no GPU that it can use{reason}")
    try:  # the first use of a GPU, which may be in a bad state
        return Gpus(tuple(cuda.get_device_name(number) for number in range(cuda.device_count())))
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        return Gpus(problem=f"torch cannot use its GPU: {reason}")


if __name__ == "__main__":  # for `draftwire serve`, which does not import torch
    try:
        chosen = device_here(sys.argv[1])
    except ValueError as error:
        sys.exit(str(error))
    print(chosen.device, chosen.about, sep="\n")
