"""The release's wheels: they need no compiler, install the checkout's packages, have everything, "
"and compute the same bits."""

import json
import os
import platform
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from draftwire.version import __version__
from draftwire_core.engine import InProcessGenerator, SamplingParams
from draftwire_core.engine.kernels.library import available_kernels
from scripts.release import build_wheels as script
from scripts.release.newcomer import Newcomer, first_steps
from scripts.release.try_installation import OPTIONS, PROMPT, TrialError, try_installation
from tests.harness.checkout import MODELS, ROOT
from tests.harness.waiting import LONG_PATIENCE
from tests.harness.wheels import SDK_NEEDS, Built, Installation, build_wheels

pytestmark = pytest.mark.slow

PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]
LIBRARY = "draftwire_core/engine/kernels/libdraftwire_engine.so"
PLATFORMS = ("x86_64", "aarch64")
LOGITS = """
import hashlib, json, sys
import torch
from draftwire_core.engine.kernels import library
from draftwire_core.engine.kernels.library import faster, kernels_of
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel

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
IMPORT_ALL = """
import importlib, json, pkgutil
import draftwire, draftwire_core, draftwire_sglang, draftwire_tools, draftwire_vllm
import drafter_service, gateway_service, verifier_service
no_module = "draftwire_core.engine.kernels.libdraftwire_engine"
names = []
for package in (
    draftwire, draftwire_core, draftwire_sglang, draftwire_tools, draftwire_vllm, drafter_service, gateway_service,
    verifier_service
):
    names.append(package.__name__)
    names += [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
names.remove(no_module)
adapters = "draftwire_core.adapters"
need_an_engine = {
    f"{adapters}.sglang.algorithm", f"{adapters}.sglang.worker", f"{adapters}.vllm.worker", "draftwire_vllm.worker"
}
for name in names:
    if not name.endswith("__main__") and name not in need_an_engine:
        importlib.import_module(name)
print(json.dumps(sorted(names)))
"""
has_wheel = pytest.mark.skipif(platform.machine() not in PLATFORMS, reason="there is no wheel for this processor")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What a release publishes."""
    library = ROOT / LIBRARY
    before = library.stat().st_mtime_ns if library.exists() else None
    built = build_wheels(tmp_path_factory.mktemp("wheels"), PLATFORMS)
    after = library.stat().st_mtime_ns if library.exists() else None
    assert before == after, "the checkout's own library was rebuilt"
    return built


@pytest.fixture(scope="module")
def services(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation of both wheels."""
    place = tmp_path_factory.mktemp("services") / "venv"
    return Installation(place, built.sdk, built.services[platform.machine()])


@pytest.fixture(scope="module")
def sdk(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An installation of the SDK alone, without torch."""
    return Installation(tmp_path_factory.mktemp("sdk") / "venv", built.sdk)


def files_of_packages() -> set[str]:
    """The files that a user of the packages needs, as the wheels name them."""
    return {
        str(file.relative_to(ROOT)).removeprefix("sdk/")
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file()
        and "__pycache__" not in file.parts
        and not file.name.startswith(("libdraftwire_engine.so", "version.txt."))
    }


@pytest.mark.parametrize("machine", PLATFORMS)
def test_wheels_have_every_file_of_the_packages(machine: str, built: Built) -> None:
    assert built.sdk.name == f"draftwire-{__version__}-py3-none-any.whl"
    wheel = built.services[machine]
    assert wheel.name == f"draftwire_services-{__version__}-py3-none-manylinux_2_17_{machine}.whl"
    with zipfile.ZipFile(wheel) as of_services, zipfile.ZipFile(built.sdk) as of_sdk:
        names, others = of_services.namelist(), of_sdk.namelist()
    assert names.count(LIBRARY) == 1
    assert not set(names) & set(others)
    assert files_of_packages() <= {*names, *others}
    assert {name for name in others if not name.startswith(("draftwire/", "draftwire_tools/", "draftwire-"))} == set()


@has_wheel
def test_only_the_projects_names_are_installed(services: Installation, sdk: Installation) -> None:
    assert services.names() - {"dependencies.pth"} == script.NAMES["draftwire"] | script.NAMES["draftwire_services"]
    assert sdk.names() - set(SDK_NEEDS) == script.NAMES["draftwire"]
    programs = {each.name for each in services.programs.glob("draftwire*")}
    assert programs == {"draftwire", "draftwire-verifier", "draftwire-drafter", "draftwire-gateway"}
    assert {each.name for each in sdk.programs.glob("draftwire*")} == {"draftwire"}


@has_wheel
def test_wheels_run_without_a_compiler_as_this_checkout_does(services: Installation) -> None:
    services.add_dependencies()
    for weights in ("checkpoint", "q4_0"):
        arguments = [str(MODELS / "target"), weights]
        file, *installed = told(services.run("python", "-c", LOGITS, *arguments))
        assert Path(file).is_relative_to(services.place)
        of_checkout = dict(os.environ) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}"}
        command = [sys.executable, "-c", LOGITS, *arguments]
        _, *here = told(
            subprocess.run(
                command, cwd=ROOT, env=of_checkout, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False
            )
        )
        assert installed[0] == available_kernels()[-1]
        assert installed == here


@has_wheel
def test_every_module_can_be_imported(services: Installation) -> None:
    services.add_dependencies()
    files = (each.removesuffix(".py").removesuffix("/__init__") for each in files_of_packages() if each.endswith(".py"))
    assert told(services.run("python", "-c", IMPORT_ALL)) == sorted(each.replace("/", ".") for each in files)


def told(done: "subprocess.CompletedProcess[str]") -> Any:
    """Returns the JSON that a program has printed."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@has_wheel
def test_installed_services_and_the_sdk_without_torch_generate_a_text(
    services: Installation, sdk: Installation
) -> None:
    """The SDK is in an environment of its own; the verifier, the drafter and the gateway are those of the wheels."""
    services.add_dependencies()
    sdk.add_dependencies(*SDK_NEEDS)
    assert "No module named 'torch'" in sdk.run("python", "-c", "import torch").stderr
    text = try_installation(services.programs, sdk.programs, MODELS)
    in_process = InProcessGenerator.load(str(MODELS / "target"), str(MODELS / "draft"))
    sampling = SamplingParams(temperature=OPTIONS["temperature"], seed=int(OPTIONS["seed"]))
    assert text == in_process.generate(PROMPT, max_tokens=int(OPTIONS["max_tokens"]), sampling=sampling).text != ""


@has_wheel
@pytest.mark.package_index
@pytest.mark.timeout(3600)
def test_a_newcomer_has_an_answer_after_three_commands(built: Built, tmp_path: Path) -> None:
    """And swaps a drafter and checks the model; all packages but draftwire's come from the index."""
    newcomer = Newcomer(tmp_path / "environment")
    assert first_steps(newcomer, built.sdk.parent, __version__, MODELS / "target", kind="wheels") == 3
    with pytest.raises(TrialError, match=r"draftwire probe 127\.0\.0\.1:1 .* ended with 1: draftwire: no answer"):
        newcomer.run("draftwire", "probe", "127.0.0.1:1", "--timeout", "1")


NEEDS_SERVICES = {
    ("draftwire", "serve", "--model", "x"): "requires torch, transformers, verifier_service",
    ("draftwire", "train", "distill", "--target", "x"): "train is a command of draftwire-services",
    ("draftwire", "calibrate"): "calibrate is a command of draftwire-services",
    ("draftwire", "plan"): "plan is a command of draftwire-services",
    ("python", "-c", "import draftwire.edge"): "needs the services' packages; draftwire_core is missing",
}


@has_wheel
@pytest.mark.parametrize("command", NEEDS_SERVICES, ids=" ".join)
def test_without_the_services_it_says_what_to_install(command: tuple[str, ...], sdk: Installation) -> None:
    sdk.add_dependencies(*SDK_NEEDS)
    done = sdk.run(*command)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert NEEDS_SERVICES[command] in last
    extras = "serve,gateway" if "serve" in command else "serve"
    assert last.endswith(f"pip install 'draftwire-services[{extras}]'")


@has_wheel
def test_without_its_packages_a_service_says_what_to_install(built: Built, tmp_path: Path) -> None:
    bare = Installation(tmp_path / "venv", built.sdk, built.services[platform.machine()])
    bare.add_dependencies(*SDK_NEEDS)
    for program, extra in (("verifier", "serve"), ("drafter", "serve"), ("gateway", "gateway")):
        done = bare.run(f"draftwire-{program}")
        assert done.returncode == 1
        assert done.stderr.startswith(f"draftwire-{program}: requires draftwire-services[{extra}], but ")
        assert done.stderr.endswith(f"pip install 'draftwire-services[{extra}]'\n")


def test_a_source_distribution_has_what_its_wheel_is_made_of(built: Built, tmp_path: Path) -> None:
    sdk, services = built.sdists
    assert (sdk.name, services.name) == (f"draftwire-{__version__}.tar.gz", f"draftwire_services-{__version__}.tar.gz")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    compiler = os.environ | {"CC": "false"}  # without one the wheel is for any platform
    subprocess.run(
        [*command, "--wheel-dir", tmp_path, sdk, services],
        cwd=tmp_path,
        env=compiler,
        check=True,
        timeout=LONG_PATIENCE,
    )
    again = {wheel.name.partition("-")[0]: wheel for wheel in tmp_path.glob("*.whl")}
    for wheel, name in ((built.sdk, "draftwire"), (built.services["x86_64"], "draftwire_services")):
        with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again[name]) as second:
            names = {each for each in first.namelist() if not each.endswith(("/RECORD", "/WHEEL", LIBRARY))}
            assert names == {each for each in second.namelist() if not each.endswith(("/RECORD", "/WHEEL"))}
            assert all(first.read(each) == second.read(each) for each in names)


def test_a_wheel_without_its_compiled_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "compiler", lambda platform: "false")
    with pytest.raises(script.WheelError, match="the C code does not compile"):
        script.build_services("x86_64", tmp_path / "wheels")
    assert not list(tmp_path.glob("wheels/*.whl"))
