"""Settings of services that run a model: where it runs, and among how many processes it is split."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar

from pydantic import Field, PrivateAttr, model_validator

from draftwire_core.runtime.process.program import program_name
from draftwire_core.runtime.process.settings import ServiceSettings, load_settings

_LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets for each process that it starts, in addition to RANK, WORLD_SIZE and LOCAL_WORLD_SIZE."""


class RankSettings(ServiceSettings):
    """Settings of a service with a model that may be split among ranks."""

    device: str = "auto"
    """Device of the model: auto, cpu, cuda or cuda:N. auto is a GPU if torch can use one, otherwise the CPU; the first
    line of the log names it."""
    kv_slots: int = Field(default=32768, ge=0)
    """Tokens that fit into the KV cache, over all sequences; 0, on GPUs, as many as there is memory for. The log says
    how much memory that is."""
    context_length: int | None = Field(default=None, ge=64)
    """Tokens of the longest sequence; by default what the model declares, or for a model with two sets of rotary
    factors (LongRoPE) what the short ones are for. Beyond that, the long ones are used at every position."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory that may be in use, by all processes together, once a KV cache sized by --kv-slots 0 is
    allocated."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Processes (ranks) that the model is split among, one per GPU or part of the CPU. Under torchrun, its world
    size."""
    tensor_parallel_timeout_seconds: float = Field(default=60.0, ge=1)
    """Longest that a rank waits for another one in a step, in seconds; then the service ends."""

    _asked_device: str | None = PrivateAttr(default=None)

    @property
    def asked_device(self) -> str:
        """The device as it was given, auto included."""
        return self._asked_device or self.device

    @property
    def cpu_only(self) -> str:
        """The flags given here that need a CPU; empty if there is none."""
        return ""

    def on(self, device: str) -> Self:
        """Returns these settings for a device in place of auto.

        Raises:
            ValueError: another setting does not go with it; the message begins with its flag.
        """
        settings = self.model_copy(update={"device": device})
        settings._asked_device = self.asked_device
        settings.check_device()
        return settings

    def check_device(self) -> None:
        """Checks the settings that depend on the device, once it is known.

        Raises:
            ValueError: the device cannot do it; the message begins with the flag.
        """
        if not self.kv_slots and self.device == "cpu":
            raise ValueError("--kv-slots: 0, as many as there is memory for, requires --device cuda, got cpu")

    @property
    def rank(self) -> int:
        """Rank of this process; rank 0 serves."""
        return int(os.environ["RANK"]) if _LAUNCHED in os.environ else 0

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_there_are(cls, values: dict[str, Any]) -> dict[str, Any]:
        launched = {"tensor_parallel": os.environ["WORLD_SIZE"]} if _LAUNCHED in os.environ else {}
        return launched | values

    @model_validator(mode="after")
    def _ranks_have_devices(self) -> Self:
        if self.tensor_parallel > 1 and ":" in self.device:
            raise ValueError(f"--device: must be auto, cpu or cuda with --tensor-parallel, got {self.device}")
        return self

    @model_validator(mode="after")
    def _device_can_do_it(self) -> Self:
        if self.device != "auto":
            self.check_device()
        return self

    @model_validator(mode="after")
    def _ranks_are_here(self) -> Self:
        if _LAUNCHED not in os.environ:
            return self
        launched, here = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
        if self.tensor_parallel != launched:
            raise ValueError(
                f"--tensor-parallel: torchrun has started {launched} processes, got {self.tensor_parallel}"
            )
        if here != launched:
            raise ValueError(
                f"--tensor-parallel: all ranks must be on one machine, but only {here} of {launched} are on this one"
            )
        return self


class Device(Protocol):
    """A device that was chosen."""

    @property
    def device(self) -> str:
        """cpu, cuda or cuda:N."""

    @property
    def about(self) -> str:
        """The device for people."""

    @property
    def unused(self) -> str:
        """Why a GPU of this machine is not used, though nothing asks for the CPU; empty if there is none."""


SettingsT = TypeVar("SettingsT", bound=RankSettings)


def load_rank_settings(
    cls: type[SettingsT], choose: Callable[[str, str], Device], argv: Sequence[str] | None = None
) -> tuple[SettingsT, Device]:
    """Reads settings as `load_settings` does, and decides the device. Returns the settings for it, and the device.

    choose: returns the device for the given one and the flags that need a CPU; raises ValueError. Raises SystemExit as
    `load_settings` does.
    """
    settings = load_settings(cls, argv)
    try:
        chosen = choose(settings.device, settings.cpu_only)
        return settings.on(chosen.device), chosen
    except ValueError as error:
        print(f"{program_name()}: {error}", file=sys.stderr)
        raise SystemExit(2) from error
