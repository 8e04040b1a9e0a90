"""Whether a machine can serve a target, told before it is loaded; a CPU stands in for a GPU."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.device.choices import DeviceChoice
from tests.harness.models.tiny_checkpoint import write_checkpoint
from verifier_service import preflight as module
from verifier_service import process
from verifier_service.preflight import Finding, findings, preflight
from verifier_service.settings import VerifierSettings

ON_CPU = DeviceChoice("cpu", "cpu")
ON_GPU = DeviceChoice("cuda", "cuda (NVIDIA H200)")
SLOT = 2 * 2 * 8 * 2 * 2
"""Bytes of a slot: layers, heads, dimension, keys and values, two bytes each."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's speed is not measured."""
    monkeypatch.setattr(module, "_copied_bytes_per_second", lambda place: 1e9)
    monkeypatch.setattr(module, "read_bandwidth", lambda: 1e9)


@dataclass
class Gpu:
    """Stands in for a GPU."""

    free: int = 24 << 30
    lacking: str | None = None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    monkeypatch.setattr(module, "memory", lambda place: (found.free, 24 << 30))
    monkeypatch.setattr(module, "missing", lambda *about: found.lacking)
    monkeypatch.setattr(module, "resolve_dtype", lambda name, place: torch.bfloat16)
    monkeypatch.setattr(module, "_compiler", lambda: Finding("compiler", True, "gcc"))
    return found


def on_gpu(checkpoint: Path, **changes: object) -> VerifierSettings:
    return VerifierSettings(model=str(checkpoint)).model_copy(update={"device": "cuda", "kv_slots": 0, **changes})


def wrong(settings: VerifierSettings, device: DeviceChoice) -> dict[str, str]:
    return {each.question: each.about for each in findings(settings, device) if not each.good}


def test_a_cpu_that_can(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(VerifierSettings(model=str(checkpoint), device="cpu"), ON_CPU) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        f"yes  {question}" for question in ("driver and torch", "compiler", "model", "memory", "speed")
    ]
    assert lines[2] == "yes  model: llama, 2 layers, 0.0 GB of weights"
    assert lines[-2].endswith("tokens/s without drafts, by 1 GB/s of memory")
    assert lines[-1] == f"yes: {checkpoint} can be served here"


def test_a_gpu_that_can(checkpoint: Path, gpu: Gpu) -> None:
    found = {each.question: each.about for each in findings(on_gpu(checkpoint), ON_GPU)}
    assert not wrong(on_gpu(checkpoint), ON_GPU)
    assert found["driver and torch"].startswith("cuda (NVIDIA H200); torch ")
    slots = int(re.findall(r"room for (\d+) KV slots", found["memory"])[0])
    assert 0.999 < slots * SLOT / (0.9 * (24 << 30) - module._STEP_BYTES) < 1
    assert found["speed"].startswith("about ")


def test_a_gpu_that_torch_cannot_use(checkpoint: Path) -> None:
    unused = DeviceChoice("cpu", "cpu (why)", "/dev/nvidia0: torch was built without CUDA")
    settings = VerifierSettings(model=str(checkpoint))
    assert wrong(settings.on("cpu"), unused)["driver and torch"].startswith(
        "/dev/nvidia0: torch was built without CUDA;"
    )


def test_kernels_that_cannot_run_the_model(checkpoint: Path, gpu: Gpu) -> None:
    gpu.lacking = "kernels are for heads of up to 256 elements, not 512"
    assert wrong(on_gpu(checkpoint), ON_GPU) == {"kernels": gpu.lacking}
    assert not wrong(on_gpu(checkpoint, allow_slow_layers=True), ON_GPU)


def test_a_gpu_without_room(checkpoint: Path, gpu: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.free = 3 << 30
    assert preflight(on_gpu(checkpoint), ON_GPU) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "no: memory"
    assert "room for 0 KV slots; needed: at least 256 KV slots" in wrong(on_gpu(checkpoint), ON_GPU)["memory"]
    assert wrong(on_gpu(checkpoint, max_tree_nodes=256), ON_GPU)["memory"].endswith("needed: at least 258 KV slots")
    gpu.free = 2 << 30
    assert not wrong(on_gpu(checkpoint, kv_slots=300), ON_GPU), "a cache of a given size may take all that is free"


def test_a_host_without_room(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_memory", lambda: 1000 * SLOT)
    settings = VerifierSettings(model=str(checkpoint), device="cpu", kv_slots=5000)
    assert wrong(settings, ON_CPU)["memory"].endswith("KV slots; needed: 5000 KV slots")


def test_no_such_model(tmp_path: Path) -> None:
    settings = VerifierSettings(model=str(tmp_path), device="cpu")
    assert wrong(settings, ON_CPU)["model"].startswith(f"model {tmp_path}: not a checkpoint")


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    assert not module._compiler().good
    monkeypatch.setenv("CC", "/usr/bin/cc")
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: "/nowhere")
    assert module._compiler() == Finding("compiler", False, "there is no /nowhere/Python.h (python3-dev)")


def test_it_is_a_flag_of_the_service(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert process.main(["--model", str(checkpoint), "--device", "cpu", "--preflight"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("yes: ")
