"""The release's wheels: they need no compiler, have everything that the packages have, and compute the same bits."""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from draftwire.version import __version__
from speculative_engine.kernels.library import available_kernels
from tests.harness.checkout import MODELS, ROOT
from tests.harness.waiting import PATIENCE
from tests.harness.wheels import build_wheels

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]
LIBRARY = "speculative_engine/kernels/libspeculative_engine.so"
PLATFORMS = ("x86_64", "aarch64")
LOGITS = """
import hashlib, json, sys
import torch
from speculative_engine.kernels import library
from speculative_engine.kernels.advice import faster, kernels_of
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel

torch.set_num_threads(1)
model = PackedModel.load(sys.argv[1], slots=64, dtype="bfloat16", weights=sys.argv[2])
builder = BatchBuilder()
slots = model.pool.take(3)
tokens = enumerate(zip((5, 7, 9), slots))
rows = [builder.add_row(token, place, int(slot), wants_logits=True) for place, (token, slot) in tokens]
builder.add_lane(slots[:0], rows)
logits = model.forward(builder.build(model.group_size, model.device)).float().numpy()
told = kernels_of("cpu"), faster("cpu", "bfloat16"), hashlib.sha256(logits.tobytes()).hexdigest()
print(json.dumps([library.__file__, *told]))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel of each platform, by its name."""
    out = tmp_path_factory.mktemp("wheels")
    before = (ROOT / LIBRARY).stat().st_mtime_ns if (ROOT / LIBRARY).exists() else None
    built = build_wheels(out)
    after = (ROOT / LIBRARY).stat().st_mtime_ns if (ROOT / LIBRARY).exists() else None
    assert before == after, "the checkout's own library was rebuilt"
    return dict(zip(PLATFORMS, built, strict=True))


def files_of_packages() -> set[str]:
    """The files that a user of the packages needs, as a wheel names them."""
    return {
        str(file.relative_to((ROOT / package).parent))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and not file.name.startswith("libspeculative_engine.so")
    }


@pytest.mark.parametrize("machine", PLATFORMS)
def test_a_wheel_has_every_file_of_its_packages(machine: str, wheels: dict[str, Path]) -> None:
    assert wheels[machine].name.endswith(f"-py3-none-manylinux_2_17_{machine}.whl")
    with zipfile.ZipFile(wheels[machine]) as archive:
        names = archive.namelist()
    assert names.count(LIBRARY) == 1
    assert files_of_packages() <= set(names)


@pytest.mark.skipif(platform.machine() not in PLATFORMS, reason="there is no wheel for this processor")
def test_a_wheel_runs_without_a_compiler_as_this_checkout_does(wheels: dict[str, Path], tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", place], check=True, timeout=PATIENCE)
    python = place / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheels[platform.machine()]],
        check=True, timeout=PATIENCE,
    )  # fmt: skip
    (packages,) = place.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # not what is installed editable there
    clean = {"PATH": "", "HOME": str(tmp_path)}
    for weights in ("checkpoint", "q4_0"):
        arguments = ["-c", LOGITS, str(MODELS / "target"), weights]
        file, *installed = told(python, arguments, tmp_path, clean)
        assert Path(file).is_relative_to(place)
        of_checkout = dict(os.environ) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"}
        _, *here = told(Path(sys.executable), arguments, ROOT, of_checkout)
        assert installed[0] == available_kernels()[-1]
        assert installed == here


def told(python: Path, arguments: list[str], place: Path, variables: dict[str, str]) -> list[str]:
    """Returns the JSON that a program prints."""
    done = subprocess.run(
        [python, *arguments], cwd=place, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_a_wheel_without_its_compiled_part_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    broken = dict(os.environ) | {"CC": "false", "DRAFTWIRE_WHEEL_PLATFORM": "manylinux_2_17_x86_64"}
    broken["SETUPTOOLS_SCM_PRETEND_VERSION_FOR_DRAFTWIRE"] = __version__
    done = subprocess.run(command, env=broken, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    assert "the C code does not compile" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())
