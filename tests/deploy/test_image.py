"""The Dockerfile: properties of its images, and its steps, run in a local directory.

The images themselves are built and run by deploy/image/build_check.py, which needs root and minutes.
"""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from benchmarks.harness.results import results
from tests.harness.deploy.compose_file import read_compose
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.suite.skipped import needs
from tests.harness.waiting import LONG_PATIENCE

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "deploy" / "image"
FILE = Dockerfile(ROOT / "Dockerfile")
OURS = ("verifier", "drafter", "gateway")
INSTALL_SECONDS = 280

VERSION = "0.1.0.dev1+test"

ours = pytest.mark.parametrize("target", OURS)


@ours
def test_an_image_is_run_without_rights_and_without_a_shell(target: str) -> None:
    image = FILE.image(target)
    assert image.stages[0].base == "${PYTHON_IMAGE}"
    user, _, group = image.values("USER")[-1].partition(":")
    assert int(user) > 0 and int(group) > 0
    assert image.entrypoint == [f"draftwire-{target}"]
    assert image.healthcheck == ["draftwire", "probe"]
    assert image.values("STOPSIGNAL") == ["SIGTERM"]


@ours
def test_an_image_has_no_more_packages_than_it_needs(target: str) -> None:
    image = FILE.image(target)
    assert not any("apt-get" in step for step in image.values("RUN"))
    copied = [value for value in image.values("COPY") if value.startswith("--from=")]
    wanted = "gateway-packages" if target == "gateway" else "service-packages"
    assert copied == [f"--from={wanted} /opt/draftwire /opt/draftwire", "--from=wheel /wheels /wheels"]
    (installed,) = [value for value in FILE.stages[wanted].instructions if value[0] == "RUN"]
    assert (" gateway" if target == "gateway" else "${EXTRAS}") in installed[1]


@pytest.mark.parametrize("target", ["verifier", "drafter"])
def test_torch_compiles_no_kernels_and_triton_can_load_its_own(target: str) -> None:
    """torch's kernels that Triton compiles at their first call would end a service whose image cannot compile."""
    image = FILE.image(target)
    assert image.environment["TORCH_DISABLE_NATIVE_JIT"] == "1"
    cache = image.environment["TRITON_CACHE_DIR"]
    assert cache in json.loads(image.values("VOLUME")[-1])
    assert any("install --directory --owner=10001" in step and cache in step for step in image.values("RUN"))


def test_torch_knows_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._native import common_utils

    asked = common_utils.check_native_jit_disabled.__wrapped__  # it keeps its first answer
    assert not asked()
    monkeypatch.setenv("TORCH_DISABLE_NATIVE_JIT", "1")
    assert asked()


def test_gpus_get_what_transformers_needs_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"accelerate"} <= {re.split("[<>=]", each)[0] for each in extras["gpu"]}
    build = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["x-gpu-image"]
    assert "gpu" in build["args"]["EXTRAS"].split(",")


@ours
def test_an_image_says_where_it_listens(target: str) -> None:
    image = FILE.image(target)
    prefix = "DRAFTWIRE_GATEWAY_" if target == "gateway" else "DRAFTWIRE_"
    listen, probe = image.environment[f"{prefix}LISTEN"], image.environment["DRAFTWIRE_PROBE_ADDRESS"]
    port = listen.rpartition(":")[2]
    assert listen.startswith("0.0.0.0:") and port == image.values("EXPOSE")[0].split()[0]
    assert f"127.0.0.1:{port}" in probe


@pytest.mark.parametrize("target", [*OURS, "models"])
def test_an_image_says_which_build_it_is(target: str) -> None:
    image = FILE.image(target)
    (labels,) = image.values("LABEL")
    prefix = "org.opencontainers.image."
    told = {
        name.removeprefix(prefix): value for name, _, value in (each.partition("=") for each in shlex.split(labels))
    }
    assert told == {
        "title": f"draftwire-{target}",
        "licenses": "Apache-2.0",
        "version": "${DRAFTWIRE_VERSION}",
        "revision": "${DRAFTWIRE_REVISION}",
        "source": "${DRAFTWIRE_SOURCE}",
    }
    # In the last stage, after all slow steps, so that another commit repeats none of them.
    last = [name for name, _ in image.stages[-1].instructions]
    assert last[-4:] == ["ARG", "ARG", "ARG", "LABEL"]
    assert ("RUN", 'build_wheel.sh /source /wheels "${DRAFTWIRE_VERSION}"') in FILE.stages["wheel"].instructions


def test_the_models_come_without_a_system() -> None:
    image = FILE.image("models")
    assert [stage.base for stage in image.stages] == ["scratch"]
    assert image.values("COPY")[0] == "--from=copy /bin/busybox /bin/cp"  # static: it needs no library


@ours
def test_a_health_check_is_no_load(target: str) -> None:
    assert "--interval=30s" in FILE.image(target).values("HEALTHCHECK")[-1]
    services = read_compose(ROOT / "docker-compose.yml", {})["services"]
    assert services["drafter-1" if target == "drafter" else target]["healthcheck"]["interval"] == "30s"


def test_all_that_is_copied_is_there_and_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    taken = [line[1:] for line in lines if line.startswith("!")]
    sources = [
        source
        for stage in FILE.stages.values()
        for name, value in stage.instructions
        if name == "COPY" and not value.startswith("--from")
        for source in value.split()[:-1]
    ]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in taken), source
    for pattern in taken:
        assert list(ROOT.glob(pattern)), pattern
    mounted = [part for stage in FILE.stages.values() for _, part in stage.instructions if "type=bind,source=" in part]
    assert mounted
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {package.partition("/")[0] for package in wheel["packages"]} <= set(sources)


def test_the_build_check_gives_containers_what_compose_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STEPS)
    checked = importlib.import_module("build_check")
    services = read_compose(ROOT / "docker-compose.yml", {})["services"]
    for target, name in (("verifier", "verifier"), ("drafter", "drafter-1"), ("gateway", "gateway")):
        limits = services[name]["deploy"]["resources"]["limits"]
        given = checked.LIMITS[target]
        assert (f"{given.memory_mebibytes // 1024}g", given.processes) == (limits["memory"], limits["pids"])
    assert set(checked.TARGETS) == {*OURS, "models"}


def clean() -> dict[str, str]:
    """Returns the environment without variables that would make this checkout's packages importable."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DRAFTWIRE_"))}


def step(name: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [STEPS / name, *arguments], env=clean(), capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run(program: Path, *arguments: str, place: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [program, *arguments],
        cwd=place,
        env=clean(),
        capture_output=True,
        text=True,
        timeout=LONG_PATIENCE,
        check=False,
    )


@pytest.mark.processes
class TestCompiler:
    @pytest.mark.parametrize("target", ["verifier", "drafter"])
    @pytest.mark.parametrize("gpu", [False, True])
    def test_an_image_for_gpus_alone_has_a_compiler(self, target: str, gpu: bool, tmp_path: Path) -> None:
        (step,) = [each for each in FILE.image(target).values("RUN") if "install_compiler.sh" in each]
        assert step.endswith('install_compiler.sh "${EXTRAS}"')
        called, command = tmp_path / "called", tmp_path / "apt-get"
        command.write_text(f'#!/bin/sh\necho "$@" >> {called}\n')
        command.chmod(0o755)
        (tmp_path / "rm").symlink_to("/bin/true")
        extras = "serve,tracing,gpu" if gpu else "serve,tracing"
        script = ROOT / "deploy" / "image" / "install_compiler.sh"
        subprocess.run(["/bin/sh", str(script), extras], env={"PATH": str(tmp_path)}, check=True, timeout=LONG_PATIENCE)
        assert called.exists() == gpu
        assert not gpu or "gcc libc6-dev" in called.read_text()


@pytest.mark.processes
class TestPackages:
    def test_a_gpu_image_may_have_the_packages_that_gpus_were_measured_with(self, tmp_path: Path) -> None:
        measured = STEPS / "measured.txt"
        newest = next(each for each in results() if each.benchmark == "gpu")
        pinned = dict(line.split("==") for line in measured.read_text().splitlines() if "==" in line)
        assert {name: newest.versions[name] for name in ("torch", "transformers")}.items() <= pinned.items()
        program = (STEPS / "install_packages.sh").read_text().split("<<'PYTHON'\n")[1].split("\nPYTHON\n")[0]
        for files in ([], [str(measured)]):
            command = [sys.executable, "-c", program, str(ROOT), "serve,gpu", str(tmp_path), *files]
            subprocess.run(command, check=True, timeout=LONG_PATIENCE)
            wanted, bounds = (
                (tmp_path / name).read_text().splitlines() for name in ("requirements.txt", "constraints.txt")
            )
            assert any(line.startswith("accelerate>=") for line in wanted)
            assert any(line.startswith("safetensors==") for line in bounds)
            assert (f"torch=={pinned['torch']}" in wanted) == bool(files)
            (torch,) = (line for line in bounds if line.startswith("torch=="))
            assert (torch == f"torch=={pinned['torch']}") == bool(files)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gateway's environment, as in its image."""
    place = tmp_path_factory.mktemp("image")
    source = place / "source"
    for line in (value for name, value in FILE.stages["wheel"].instructions if name == "COPY"):
        for item in line.split()[:-1]:
            if (ROOT / item).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.so")
                shutil.copytree(ROOT / item, source / item, ignore=ignored)
            elif not item.endswith(".sh"):
                source.mkdir(exist_ok=True)
                shutil.copy(ROOT / item, source)
    step("build_wheel.sh", source, place / "wheels", VERSION)
    step("install_packages.sh", source, place / "draftwire", "gateway")
    step("install_wheel.sh", place / "wheels", place / "draftwire")
    return place


@pytest.mark.slow
@needs("gcc")
class TestSteps:
    @pytest.mark.package_index
    @pytest.mark.timeout(1800)
    def test_the_steps_make_the_gateways_environment(self, environment: Path) -> None:
        sdk, services = sorted((environment / "wheels").iterdir())
        assert sdk.name == f"draftwire-{VERSION}-py3-none-any.whl"
        assert services.name.startswith(f"draftwire_services-{VERSION}-")
        assert not services.name.endswith("-none-any.whl")  # it has the compiled part
        programs = environment / "draftwire" / "bin"
        assert run(programs / "draftwire", "--version", place=environment).stdout.strip() == VERSION
        look = "import importlib.util as u, json; print(json.dumps({n: u.find_spec(n) is not None for n in NAMES}))"
        names = ["draftwire_core", "draftwire", "fastapi", "gateway_service", "torch", "transformers", "pip"]
        seen = run(programs / "python", "-c", look.replace("NAMES", repr(names)), place=environment)
        assert json.loads(seen.stdout) == {
            name: name in ("draftwire_core", "draftwire", "fastapi", "gateway_service") for name in names
        }
        assert run(programs / "draftwire-gateway", "--help", place=environment).returncode == 0
        probe = run(programs / "draftwire", "probe", "--address", "127.0.0.1:1", "--timeout", "1", place=environment)
        assert (probe.returncode, probe.stdout) == (1, "")
        assert probe.stderr.startswith("draftwire: no answer from 127.0.0.1:1")
        code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
        (library,) = (environment / "draftwire").glob("lib/python*/site-packages/draftwire_core/engine/kernels/*.so")
        assert run(programs / "python", "-c", code, str(library), place=environment).returncode == 0
