"""What `--device auto` chooses, with stand-ins for what torch says of a machine's GPUs."""

import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from draftwire_core.engine.device import choices
from draftwire_core.engine.device.choices import Gpus, choose_device, device_here, gpus_here, gpus_of

TWO = Gpus(("NVIDIA H200", "NVIDIA L4"))
NONE = Gpus(problem="there is no NVIDIA driver here")


@dataclass
class Cuda:
    """Stands in for torch.cuda."""

    names: tuple[str, ...]
    told: str = ""

    def is_available(self) -> bool:
        if self.told:
            warnings.warn(self.told, stacklevel=1)
        return bool(self.names)

    def device_count(self) -> int:
        return len(self.names)

    def get_device_name(self, device: int) -> str:
        return self.names[device]


@pytest.mark.parametrize(
    ("asked", "gpus", "cpu_only", "device", "about"),
    [
        ("auto", TWO, "", "cuda", "cuda (NVIDIA H200)"),
        ("auto", NONE, "", "cpu", "cpu (there is no NVIDIA driver here)"),
        ("auto", TWO, "--kv-dtype float16", "cpu", "cpu (--kv-dtype float16 needs it)"),
        ("cpu", TWO, "", "cpu", "cpu"),
        ("cuda", TWO, "", "cuda", "cuda (NVIDIA H200)"),
        ("cuda:1", TWO, "", "cuda:1", "cuda:1 (NVIDIA L4)"),
    ],
)
def test_the_choice(asked: str, gpus: Gpus, cpu_only: str, device: str, about: str) -> None:
    chosen = choose_device(asked, gpus, cpu_only)
    assert (chosen.device, chosen.about) == (device, about)


@pytest.mark.parametrize(
    ("asked", "gpus", "message"),
    [
        ("gpu", TWO, "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
        ("cuda:x", NONE, "--device: expected auto, cpu, cuda or cuda:N, got 'cuda:x'"),
        ("cuda:", TWO, "--device: expected auto, cpu, cuda or cuda:N, got 'cuda:'"),
        ("cuda", NONE, "--device: cuda cannot be used: there is no NVIDIA driver here; cpu or auto runs on the CPU"),
        ("cuda:2", TWO, "--device: there is no cuda:2; torch sees 2 GPU(s), numbered from 0"),
    ],
)
def test_a_gpu_that_is_not_there_is_a_sentence(asked: str, gpus: Gpus, message: str) -> None:
    with pytest.raises(ValueError, match="--device") as caught:
        choose_device(asked, gpus)
    assert str(caught.value) == message


def test_what_torch_says_of_gpus() -> None:
    assert gpus_of(Cuda(TWO.names)) == TWO
    assert gpus_of(Cuda(())).problem == "torch sees no GPU that it can use"
    old = gpus_of(Cuda((), "The NVIDIA driver\nis too old."))
    assert old.problem == "torch sees no GPU that it can use: The NVIDIA driver is too old."


def test_a_gpu_in_a_bad_state_is_no_gpu() -> None:
    class Lost(Cuda):
        def get_device_name(self, device: int) -> str:
            raise RuntimeError("CUDA error: uncorrectable ECC error\nCompile with TORCH_USE_CUDA_DSA")

    found = gpus_of(Lost(TWO.names))
    assert found == Gpus(problem="torch cannot use its GPU: CUDA error: uncorrectable ECC error")
    assert choose_device("auto", found).device == "cpu"


def test_a_gpu_that_is_left_unused_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver's library is mounted elsewhere, and where torch has no CUDA."""
    monkeypatch.setattr(choices, "_DEVICES", tmp_path)
    monkeypatch.setattr(choices, "_DRIVER", "libnowhere.so.1")
    assert gpus_here() == Gpus(problem="there is no NVIDIA driver here")
    for name in ("nvidia0", "nvidiactl", "dxg"):
        (tmp_path / name).touch()
    chosen = device_here("auto")
    assert chosen.device == "cpu" and chosen.unused == (
        f"{tmp_path}/dxg, {tmp_path}/nvidia0: the driver's library libnowhere.so.1 is not found (LD_LIBRARY_PATH)"
    )
    assert not device_here("cpu").unused and not device_here("auto", "--kv-dtype float16").unused
    monkeypatch.setattr(choices, "_DRIVER", None)  # this process itself, which can be loaded
    monkeypatch.setattr(torch.version, "cuda", None)
    assert device_here("auto").unused.endswith("was built without CUDA, though there is an NVIDIA driver")
    with pytest.raises(ValueError, match=r"--device: cuda cannot be used: torch .* was built without CUDA"):
        device_here("cuda")


def test_gpus_are_looked_for_only_if_one_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "gpus_here", lambda: TWO)
    assert device_here("auto").device == "cuda"
    monkeypatch.setattr(choices, "gpus_here", lambda: pytest.fail("looked for GPUs"))
    assert device_here("cpu").device == "cpu"
    assert device_here("auto", "--kv-dtype float16").device == "cpu"


@pytest.mark.processes
def test_as_a_program() -> None:
    command = [sys.executable, "-m", "draftwire_core.engine.device.choices"]
    done = subprocess.run([*command, "cpu"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["cpu", "cpu"]
