"""The sampling parameters of many rows as tensors, prepared once and used by one vectorised pass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import to_device_together
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.sampling.gumbel import MAX_POSITION
from draftwire_core.engine.sampling.sampling_params import SamplingParams

FLOAT32_MAX = 3.0e38
_NOTHING = torch.empty(0, dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The parameters of R rows of logits, each with its own request and absolute position.

    A row's position is that of the token to be drawn: its index in prompt + output. Fields that list rows are on the
    host, so that an unused option costs no computation and no synchronisation with the device.
    """

    seeds: Tensor
    """[R] int64: the bits of the uint64 seed."""
    positions: Tensor
    """[R] int64."""
    temperatures: Tensor
    """[R, 1] float32; 1 for greedy rows."""
    greedy: Tensor
    """[R] bool."""
    sampled_rows: tuple[int, ...]
    """Rows that are not greedy. Only these have noise and filters; no filter changes an argmax."""
    top_k: dict[int, int]
    """Row -> k, for rows with top_k."""
    top_p: dict[int, float]
    """Row -> p, for rows with top_p."""
    min_p_rows: tuple[int, ...]
    """Rows with min_p."""
    log_min_p: Tensor
    """[len(min_p_rows)] float32: natural log of min_p."""
    min_p: dict[int, float]
    """Row -> the same number, on the host."""
    typical_p: dict[int, float]
    """Row -> p, for rows with typical_p."""

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def filters(self) -> bool:
        """Whether any row drops tokens."""
        return bool(self.top_k or self.top_p or self.min_p_rows or self.typical_p)

    @property
    def filtered_rows(self) -> list[int]:
        """Rows that drop tokens, in ascending order."""
        return sorted({*self.top_k, *self.top_p, *self.min_p_rows, *self.typical_p})

    @classmethod
    def build(
        cls,
        params: Sequence[SamplingParams],
        positions: Sequence[int],
        device: torch.device | str = "cpu",
    ) -> "SamplingBatch":
        """Builds a row for each pair of `params` and `positions`. The caller has validated the parameters."""
        if len(params) != len(positions):
            raise ValueError(f"{len(params)} rows of parameters for {len(positions)} positions")
        check_positions(positions)
        sampled = [row for row, p in enumerate(params) if not p.greedy]
        min_p_rows = [row for row in sampled if params[row].min_p > 0]
        log_min_p = log_min_p_of([params[row].min_p for row in min_p_rows]) if min_p_rows else _NOTHING
        # A single tensor of integers, since making one costs more than filling it.
        integers = torch.tensor([[_as_int64(p.seed) for p in params], list(positions)], dtype=torch.int64)
        temperatures = [1.0 if p.greedy else min(p.temperature, FLOAT32_MAX) for p in params]
        return cls(
            seeds=integers[0],
            positions=integers[1],
            temperatures=torch.tensor(temperatures, dtype=torch.float32).unsqueeze(1),
            greedy=torch.tensor([p.greedy for p in params], dtype=torch.bool),
            sampled_rows=tuple(sampled),
            top_k={row: params[row].top_k for row in sampled if params[row].top_k > 0},
            top_p={row: params[row].top_p for row in sampled if params[row].top_p < 1},
            min_p_rows=tuple(min_p_rows),
            log_min_p=log_min_p,
            min_p=dict(zip(min_p_rows, log_min_p.tolist(), strict=True)),
            typical_p={row: params[row].typical_p for row in sampled if params[row].typical_p < 1},
        ).to(device)

    def to(self, device: torch.device | str) -> "SamplingBatch":
        """The same rows on a device, by one copy; those rows themselves if they are there."""
        if torch.device(device).type == "cpu" and self.seeds.device.type == "cpu":
            return self
        hosts = [self.seeds, self.positions, self.temperatures, self.greedy, self.log_min_p]
        seeds, positions, temperatures, greedy, log_min_p = to_device_together(hosts, device)
        return replace(
            self, seeds=seeds, positions=positions, temperatures=temperatures, greedy=greedy, log_min_p=log_min_p
        )

    def select(self, rows: Sequence[int]) -> "SamplingBatch":
        """The given rows, in the given order."""
        which = list(rows)
        place = {row: index for index, row in enumerate(which)}
        min_p = [(place[row], index) for index, row in enumerate(self.min_p_rows) if row in place]
        return SamplingBatch(
            seeds=self.seeds[which],
            positions=self.positions[which],
            temperatures=self.temperatures[which],
            greedy=self.greedy[which],
            sampled_rows=tuple(place[row] for row in self.sampled_rows if row in place),
            top_k={place[row]: k for row, k in self.top_k.items() if row in place},
            top_p={place[row]: p for row, p in self.top_p.items() if row in place},
            min_p_rows=tuple(row for row, _ in min_p),
            log_min_p=self.log_min_p[[index for _, index in min_p]],
            min_p={place[row]: share for row, share in self.min_p.items() if row in place},
            typical_p={place[row]: p for row, p in self.typical_p.items() if row in place},
        )


def check_positions(positions: Sequence[int]) -> None:
    """Raises FieldError for a position without noise."""
    for position in positions:
        if not 0 <= position <= MAX_POSITION:
            raise FieldError("position", f"must be in 0..{MAX_POSITION}, got {position}")


def log_min_p_of(shares: Sequence[float]) -> Tensor:
    """Natural logarithms of min_p, [n] float32."""
    return torch.tensor(shares, dtype=torch.float64).log().float()


def _as_int64(value: int) -> int:
    """The int64 with the bits of a uint64."""
    return value - (1 << 64) if value >= 1 << 63 else value
