"""Settings of services that run a model: where it runs, and among how many processes it is split."""

import os
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from service_runtime.process.settings import ServiceSettings

_LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets for each process that it starts, beside RANK, WORLD_SIZE and LOCAL_WORLD_SIZE."""


class RankSettings(ServiceSettings):
    """Settings of a service with a model that may be split among ranks."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")] = "cpu"
    """Device of the model: cpu, cuda or cuda:N."""
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
            raise ValueError(f"--device: must be cpu or cuda with --tensor-parallel, got {self.device}")
        return self

    @model_validator(mode="after")
    def _slots_can_be_counted(self) -> Self:
        if not self.kv_slots and self.device == "cpu":
            raise ValueError("--kv-slots: 0, as many as there is memory for, requires --device cuda, got cpu")
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
