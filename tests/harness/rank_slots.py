"""Loads a checkpoint as a service of two ranks does whose KV cache is sized by the memory of their GPUs.

    python -m tests.harness.rank_slots SERVICE DIRECTORY SLOTS,SLOTS

SERVICE: verifier or drafter. SLOTS: those for which each rank's memory, a stand-in for a GPU's, has room. Rank 0
prints one line of JSON, a `SlotReport`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch

from drafter_service.models import loaded_model
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.loading import slots_that_fit
from draftwire_core.engine.loading.rank_processes import running_ranks
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.engine.engines import GREEDY, engine_of, generate, specs_of
from verifier_service import target
from verifier_service.settings import VerifierSettings

SLOT = 2 * 2 * 1 * 8 * 4
"""Bytes of a slot at one of two ranks: layers, keys and values, one of two heads, dimension, float32."""
_TOTAL = 1 << 30


@dataclass(frozen=True)
class SlotReport:
    """What rank 0 finds."""

    slots: int | None
    """Of the KV cache; None if the model was refused."""
    problem: str
    tokens: list[int]
    """Output of the model."""


def pretend_memory(slots: int) -> None:
    """Makes room for so many slots, none of which graphs or steps take."""
    free = slots_that_fit._SPARE_BYTES + slots * SLOT
    slots_that_fit.memory = lambda _: (free, _TOTAL)  # type: ignore[attr-defined]


def report(model: PackedModel) -> SlotReport:
    """Uses the model."""
    tokens = generate(engine_of(model), specs_of([[5, 6, 7]], 8, [GREEDY])).tokens[0]
    return SlotReport(model.pool.capacity, "", tokens)


def led(settings: VerifierSettings | DrafterSettings, ranks: RankGroup) -> SlotReport:
    """Loads the model at rank 0."""
    try:
        if isinstance(settings, VerifierSettings):
            return report(target.load_target(settings, ranks).engine.model)
        return report(loaded_model.load_model(settings, ranks).model)
    except (StartupError, ModelLoadError) as error:
        return SlotReport(None, str(error), [])


def main() -> None:
    """Runs one of the ranks."""
    torch.set_num_threads(1)
    service, directory, slots = sys.argv[1:]
    kind = VerifierSettings if service == "verifier" else DrafterSettings
    settings = kind(
        model=directory, dtype="float32", tensor_parallel=2, threads=1, gpu_memory_utilization=1.0
    ).model_copy(update={"kv_slots": 0})  # which needs a GPU
    pretend_memory(int(slots.split(",")[settings.rank]))
    if settings.rank:
        (target if service == "verifier" else loaded_model).follow(settings, lambda: None)  # type: ignore[arg-type]
        return
    with running_ranks(settings) as ranks:
        assert ranks is not None
        print(json.dumps(asdict(led(settings, ranks))))


if __name__ == "__main__":
    main()
