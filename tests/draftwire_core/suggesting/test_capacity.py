"""What fits a device and how fast it decodes, compared with what was measured."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.suggesting.candidate import DrafterCandidate, Kind
from draftwire_core.suggesting.capacity import (
    GPU_STEP_SECONDS,
    TREE_NODES,
    Capacity,
    capacity_of,
    drafted_speed,
    drafting_seconds,
    remedies,
    step_cost,
)
from draftwire_core.suggesting.device_roofs import DeviceRoofs, cpu, gpu, gpus
from draftwire_core.suggesting.known_drafters import known_drafters
from draftwire_core.suggesting.target_facts import TargetFacts
from tests.harness.checkout import ROOT

RESULTS = ROOT / "benchmarks" / "results"
OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
GIB = 2**30
LLAMA_8B = TargetFacts(
    "Llama 3.1 8B",
    weight_bytes=16_060_000_000,
    bytes_per_token=15_010_000_000,
    pass_bytes=15_010_000_000,
    kv_values=32 * 2 * 8 * 128,
    context_length=131072,
)
PAIR = TargetFacts("the pair, inflated", weight_bytes=15_860_000_000, bytes_per_token=15_860_000_000,
                   pass_bytes=15_860_000_000, kv_values=32 * 2 * 32 * 64)  # fmt: skip
MODEL = DrafterCandidate(kind=Kind.MODEL, name="small", read_bytes=1_000_000_000, memory_bytes=1_200_000_000)
GPU_FACTOR, CPU_FACTOR = 1.25, 1.85
"""Most that a reckoned time may differ from a measured one."""


def figures(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / path).read_text())["figures"]
    return found


def value(figure: Any) -> float:
    return float(figure["median"] if isinstance(figure, dict) else figure)


def close(found: float, measured: float, factor: float) -> bool:
    return 1 / factor <= found / measured <= factor


PASSES = figures("gpu/nvidia-h200-af55fa71-2.json")
CONTEXTS = [(512, "1 rows"), (512, "4 sequences"), (512, "16 sequences"), (512, "64 sequences"),
            (4000, "1 rows"), (4000, "4 sequences"), (16000, "1 rows"), (32000, "1 rows")]  # fmt: skip


@pytest.mark.parametrize(("context", "batch"), CONTEXTS)
def test_plain_steps_are_those_of_an_h200(context: int, batch: str) -> None:
    requests = int(batch.split(maxsplit=1)[0])
    found = capacity_of(LLAMA_8B, gpu("H200"), None, requests, context)
    measured = value(PASSES[f"target, graphs, context {context}: ms of {batch}"]) / 1e3
    assert close(found.step_seconds - GPU_STEP_SECONDS, measured, GPU_FACTOR), (found.step_seconds, measured)
    assert found.plain == requests / found.step_seconds


@pytest.mark.parametrize("rows", [1, 8, 16, 64, 128, 256])
def test_rows_cost_what_they_do_on_an_h200(rows: int) -> None:
    cost = step_cost(LLAMA_8B, gpu("H200"), 131072, 512, 256)
    measured = value(PASSES[f"target, graphs, context 512: ms of {rows} rows"]) / 1e3
    assert close(cost.seconds(rows) - GPU_STEP_SECONDS, measured, GPU_FACTOR)


def test_an_h200_decodes_so_many_tokens_a_second() -> None:
    measured = figures("gpu/nvidia-h200-af55fa71.json")
    h200 = gpu("H200")
    cost = step_cost(PAIR, h200, 2 * PAIR.kv_values, 64, 9)
    plain = 1 / cost.seconds(1)
    assert close(plain, measured["graphs, T = 0: plain tokens/s"], GPU_FACTOR)
    # The draft model of 0.99 B parameters; chains of 8, of which as many were right as a step committed.
    drafting = drafting_seconds(1_980_000_000, h200, 1)
    per_step = measured["graphs, T = 0: tokens a step"]
    acceptance = next(each / 1000 for each in range(1000) if sum((each / 1000) ** n for n in range(9)) >= per_step)
    drafted, length = drafted_speed(cost, drafting, acceptance, 1)
    assert close(drafted, measured["graphs, T = 0: drafted tokens/s"], GPU_FACTOR)
    assert length >= 6


FOUND = {path.name: figures(f"weight_products/{path.name}") for path in (RESULTS / "weight_products").glob("*.json")}
CPUS = sorted(name for name, found in FOUND.items() if "read bandwidth, GB/s" in found)
"""Runs with the kernels that the processor chooses."""


@pytest.mark.parametrize("name", CPUS)
def test_a_plain_step_of_a_cpu_is_as_fast_as_measured(name: str) -> None:
    measured = FOUND[name]
    device = DeviceRoofs(
        name="cpu", memory=GIB, bandwidth=1e9 * measured["read bandwidth, GB/s"], bandwidth_from="data"
    )
    for weights, bits in (("bf16", 16.0), ("q8_0", 8.5), ("q4_0", 4.5)):
        size = round(400e6 * bits / 8)
        target = TargetFacts("400 M", bytes_per_token=size, pass_bytes=size, value_bits=bits)
        found = step_cost(target, device, 0, 0, 1).seconds(1)
        speed = 1e9 * value(measured[f"{weights}, plain step, GB/s"])
        assert close(found, size / speed, CPU_FACTOR), (weights, found, size / speed)


def test_memory_is_counted() -> None:
    found = capacity_of(LLAMA_8B, gpu("H100"), None, 32, 4096)
    assert (found.slot, found.token, found.request_slots) == (131072, 131072, 4096 + TREE_NODES)
    assert found.weights == LLAMA_8B.weight_bytes
    assert found.memory == round(0.9 * gpu("H100").memory)
    assert found.fit == (found.memory - found.weights - found.reserve) // (131072 * 4160)
    assert found.lacking < 0 < found.fit - 32
    assert remedies(found, LLAMA_8B, gpu("H100")) == []
    drafting = capacity_of(LLAMA_8B, gpu("H100"), dataclasses.replace(MODEL, slot_bytes=1000), 32, 4096)
    assert (drafting.drafter, drafting.token) == (MODEL.memory_bytes, 132072)
    assert drafting.fit < found.fit
    assert drafting.drafted is not None
    assert drafting.drafted > drafting.plain


def test_the_table_of_the_documents_is_what_is_reckoned() -> None:
    entry = next(each for each in known_drafters() if each.repository == "meta-llama/Llama-3.2-1B-Instruct")
    read, memory = entry.read_megabytes * 10**6, entry.download_megabytes * 10**6
    drafter = dataclasses.replace(MODEL, read_bytes=read, memory_bytes=memory, slot_bytes=entry.slot_bytes)
    rows = re.findall(r"^\| ([\w-]+) \| (\d+) \| (.+), (.+) \| (.+), (.+) \|$", OPERATING, re.MULTILINE)
    assert len(rows) == 6
    for name, fit, *speeds in rows:
        one, many = (capacity_of(LLAMA_8B, gpu(name), drafter, requests, 4096) for requests in (1, 32))
        found = [(one, one.plain), (many, many.plain), (one, one.drafted), (many, many.drafted)]
        assert speeds == [f"{speed:.0f}" if plan.lacking <= 0 else "no" for plan, speed in found], name
        assert int(fit) == one.fit


def test_weights_of_32_bits_are_loaded_in_16() -> None:
    wide = dataclasses.replace(LLAMA_8B, weight_bytes=32_120_000_000, bytes_per_token=30_020_000_000,
                               pass_bytes=30_020_000_000, value_bits=32.0)  # fmt: skip
    assert capacity_of(wide, gpu("H100"), None, 8, 512) == capacity_of(LLAMA_8B, gpu("H100"), None, 8, 512)


@pytest.mark.parametrize("name", ["H100", "cpu"])
def test_weights_of_few_bits_save_time_on_cpus_alone(name: str) -> None:
    device = cpu(bandwidth=50e9, memory=64 * GIB) if name == "cpu" else gpu(name)
    few = dataclasses.replace(LLAMA_8B, weight_bytes=8_500_000_000, bytes_per_token=7_974_000_000,
                              pass_bytes=7_974_000_000, value_bits=8.5)  # fmt: skip
    faster = capacity_of(few, device, None, 1, 512).plain / capacity_of(LLAMA_8B, device, None, 1, 512).plain
    assert (faster > 1.8) is (name == "cpu")
    assert name == "cpu" or faster == pytest.approx(1.0, abs=0.01)


def test_a_batch_reads_the_experts_that_its_rows_choose() -> None:
    mixture = dataclasses.replace(LLAMA_8B, bytes_per_token=3_000_000_000, expert_share=1 / 8)
    cost = step_cost(mixture, gpu("H100"), 131072, 512, 64)
    dense = step_cost(LLAMA_8B, gpu("H100"), 131072, 512, 64)
    assert cost.seconds(1) < dense.seconds(1) / 2
    assert cost.seconds(64) == pytest.approx(dense.seconds(64), rel=0.2)
    assert cost.seconds(1) < cost.seconds(2) < cost.seconds(4)


def lacking(
    device: DeviceRoofs, requests: int, context: int, drafter: DrafterCandidate | None = None
) -> tuple[Capacity, str]:
    found = capacity_of(LLAMA_8B, device, drafter, requests, context)
    assert found.lacking > 0
    return found, "; ".join(remedies(found, LLAMA_8B, device))


def test_each_remedy_suffices() -> None:
    found, told = lacking(gpu("4090"), 32, 4096)
    assert told == (
        f"at most {found.fit} requests at once; "
        f"a context of at most {found.left // (131072 * 32) - TREE_NODES} tokens; "
        "a GPU with more memory (B200, H200, H100, H100-PCIe, A100, A100-40GB, L40S, RTX-A6000)"
    )
    assert capacity_of(LLAMA_8B, gpu("4090"), None, found.fit, 4096).lacking <= 0
    assert capacity_of(LLAMA_8B, gpu("RTX-A6000"), None, 32, 4096).lacking <= 0


def test_fewer_bits_are_a_remedy() -> None:
    _, told = lacking(gpu("4090"), 12, 4096)
    assert "weights of fewer bits (--weights q8_0)" in told
    _, told = lacking(cpu(20e9, 20 * GIB), 8, 4096)
    assert "--weights q8_0" in told
    assert "GPU" not in told
    _, told = lacking(cpu(20e9, 18 * GIB), 5, 4096)
    assert "--kv-dtype q8_0" in told
    _, told = lacking(gpu("4090"), 3, 16_000)
    assert "--kv-dtype q8_0" in told


def test_weights_of_a_quantised_checkpoint_stay_as_they_are() -> None:
    target = dataclasses.replace(LLAMA_8B, value_bits=8.0)
    found = capacity_of(target, cpu(20e9, 18 * GIB), None, 5, 4096)
    assert found.lacking > 0
    assert "--weights" not in "; ".join(remedies(found, target, cpu(20e9, 18 * GIB)))


def test_the_drafter_may_be_too_much() -> None:
    alone = capacity_of(LLAMA_8B, gpu("4090"), None, 5, 4096)
    assert alone.lacking <= 0
    _, told = lacking(gpu("4090"), 5, 4096, dataclasses.replace(MODEL, memory_bytes=2_000_000_000))
    assert "no drafter with a model" in told


def test_a_model_that_is_far_too_large() -> None:
    device = cpu(20e9, GIB)
    huge = dataclasses.replace(LLAMA_8B, weight_bytes=10**13)
    found = capacity_of(huge, device, None, 1, 64)
    assert found.fit == 0
    assert remedies(found, huge, device) == ["a smaller model"]


def test_drafts_of_no_use_are_left_out() -> None:
    cost = StepCost([1, 16], [1.0, 16.0])
    assert drafted_speed(cost, 0.1, 0.9, 1) == (1.0, 0)
    flat = StepCost([1, 16], [1.0, 1.0])
    speed, length = drafted_speed(flat, 0.1, 0.5, 1)
    assert (speed, length) == (max((2 - 0.5**n) / (1 + 0.1 * n) for n in range(9)), 2)


def test_what_the_files_must_say() -> None:
    with pytest.raises(ValueError, match="--model: the files of t here do not say"):
        capacity_of(TargetFacts("t", bytes_per_token=1), gpu("L4"), None, 1, 64)
    with pytest.raises(ValueError, match="--context: the target takes at most 131072 tokens, got 200000"):
        capacity_of(LLAMA_8B, gpu("L4"), None, 1, 200_000)


def test_devices() -> None:
    assert gpu("h100").name == "H100"
    assert gpu("H200").bandwidth == 4200e9
    assert "measured" in gpu("H200").bandwidth_from
    assert gpu("H100").bandwidth == pytest.approx(0.875 * 3350e9)
    assert len({each.name for each in gpus()}) == len(gpus())
    assert all(each.on_gpu and each.bandwidth < 8e12 for each in gpus())
    with pytest.raises(ValueError, match=r"--gpu: expected one of B200, H200, .* got 'T4'"):
        gpu("T4")


def test_the_bandwidth_of_this_machine_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from draftwire_core.suggesting import device_roofs

    monkeypatch.setattr(device_roofs, "_TRIAL_BYTES", 1 << 22)
    found = device_roofs.cpu()
    assert found.bandwidth > 0
    assert found.memory > 0
    assert not found.on_gpu
    monkeypatch.setattr(device_roofs, "free_memory", lambda: None)
    with pytest.raises(ValueError, match="--memory"):
        device_roofs.cpu()
