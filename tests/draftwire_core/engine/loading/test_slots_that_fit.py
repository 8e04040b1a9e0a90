"""A KV cache as large as a GPU's memory allows, with a stand-in for the GPU's memory."""

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from draftwire_core.engine.loading import slots_that_fit as module
from draftwire_core.engine.loading.slots_that_fit import MemoryNeeds, size_cache, slots_that_fit
from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.ranks.rank_group import RankGroup
from tests.harness import processes
from tests.harness.checkout import ROOT
from tests.harness.engine.engines import error, packed, random_tokens, tiny_model, walk
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes
GIB = 1 << 30
SLOT = 3 * 2 * 2 * 16 * 4
"""Bytes of a slot of the tiny model: layers, keys and values, heads, dimension, float32."""


def test_slots_take_what_weights_steps_and_graphs_leave() -> None:
    needs = MemoryNeeds(slot=131_072, step=GIB, graphs=GIB // 2)
    # 80 GiB of which 63 are free and 8 stay free, less 1.5 and a quarter: 53.25 GiB.
    assert slots_that_fit(63 * GIB, 80 * GIB, 0.9, needs) == int(53.25 * 8192)
    assert slots_that_fit(63 * GIB, 80 * GIB, 1.0, needs) == int(61.25 * 8192)
    assert slots_that_fit(9 * GIB, 80 * GIB, 0.9, needs) <= 0


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that are free of 1 GiB beside the spare ones; the last stays."""
    left = [100 * SLOT]

    def memory(_: object) -> tuple[int, int]:
        return (left.pop(0) if len(left) > 1 else left[0]) + module._SPARE_BYTES, GIB

    monkeypatch.setattr(module, "memory", memory)
    return left


def sized(model: PackedModel, graphs: bool = False, most: int = 10_000, rows: int = 40) -> int:
    size_cache(model, 1.0, graphs=graphs, rows=rows, least=64, most=most)
    return model.pool.capacity


def test_the_cache_fills_the_memory(free: list[int]) -> None:
    model = packed(tiny_model("Llama"), 4000)
    assert sized(model) == 100
    assert model.cache.capacity == 100 and model.cache.bytes == 0  # it takes memory at the first pass
    text = random_tokens(30, seed=1)
    found, expected = (walk(each, [text], [12], seed=1) for each in (model, packed(tiny_model("Llama"), 4000)))
    assert all(error(found[row], expected[row]) < 1e-4 for row in expected)
    assert model.cache.bytes == 101 * SLOT
    assert sized(packed(tiny_model("Llama"), 4000), most=80) == 80


def test_graphs_are_counted_and_captured_after_it(free: list[int]) -> None:
    pytest.importorskip("triton")
    prepare_interpreter()
    model = PackedModel(tiny_model("Llama", num_hidden_layers=1, max_position_embeddings=64), 4000, kernels=True)
    free[:] = [each * SLOT // 3 for each in (900, 870, 100)]  # of one layer
    assert sized(model, graphs=True, rows=8) == 70
    assert isinstance(model.steps, SlotSteps) and model.captured == 0


def test_too_little_memory(free: list[int]) -> None:
    free[:] = [50 * SLOT]
    model = packed(tiny_model("Llama"), 4000)
    with pytest.raises(ModelLoadError, match=r"64 KV slots do not fit: .*\(--gpu-memory-utilization\)"):
        sized(model)
    assert model.pool.capacity == 4000 and model.pool.used == 0


class OtherRank:
    """The other of two ranks, whose memory has room for so many slots or which lacks something."""

    def __init__(self, slots: int, lacking: str | None = None) -> None:
        self._slots, self._lacking = slots, lacking

    def agreed(self, failure: str | None) -> str | None:
        """As RankGroup.agreed."""
        return failure or self._lacking

    def numbers(self, own: int) -> list[int]:
        """As RankGroup.numbers."""
        return [own, self._slots]


@pytest.mark.parametrize(("other", "expected"), [(70, 70), (130, 100)])
def test_the_rank_with_the_least_memory_decides(other: int, expected: int, free: list[int]) -> None:
    model = packed(tiny_model("Llama"), 4000)
    ranks = cast(RankGroup, OtherRank(other))
    size_cache(model, 1.0, graphs=False, rows=40, least=64, most=10_000, ranks=ranks)
    assert model.pool.capacity == model.cache.capacity == expected


def test_a_rank_with_too_little_memory_ends_all(free: list[int]) -> None:
    model = packed(tiny_model("Llama"), 4000)
    ranks = cast(RankGroup, OtherRank(10, "rank 1: 64 KV slots do not fit"))
    with pytest.raises(ModelLoadError, match="rank 1: 64 KV slots do not fit"):
        size_cache(model, 1.0, graphs=False, rows=40, least=64, most=10_000, ranks=ranks)
    assert model.pool.capacity == 4000


def on_ranks(service: str, directory: Path, slots: str) -> dict[str, Any]:
    """What rank 0 of two finds whose memory has room for so many slots each."""
    done = processes.run(
        [sys.executable, "-m", "tests.harness.rank_slots", service, str(directory), slots],
        cwd=ROOT,
        env=os.environ | processes.ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        spares=1,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_all_ranks_end_if_one_has_too_little_memory(tmp_path: Path) -> None:
    found = on_ranks("verifier", write_checkpoint(tmp_path), "400,100")
    assert found["slots"] is None
    assert "rank 1: 256 KV slots do not fit: " in found["problem"]


@pytest.mark.slow
class TestServices:
    """Services of two ranks."""

    @pytest.mark.parametrize("service", ["verifier", "drafter"])
    def test_ranks_take_the_number_of_the_one_with_the_least_memory(self, service: str, tmp_path: Path) -> None:
        directory = write_checkpoint(tmp_path)
        first, second = (on_ranks(service, directory, slots) for slots in ("400,300", "310,500"))
        assert (first["slots"], second["slots"]) == (300, 310)
        assert len(first["tokens"]) == 8 and first["tokens"] == second["tokens"]
