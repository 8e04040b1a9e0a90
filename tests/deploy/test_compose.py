"""docker-compose.yml: valid, resolved, locked down, and its services work together as local processes."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drafter_service.settings import DrafterSettings
from draftwire import Client
from draftwire_core.engine.loading import rank_processes
from draftwire_core.runtime.process.settings import load_settings, variable_of
from gateway_service.settings import GatewaySettings
from tests.harness.deploy.compose_file import interpolated, read_compose, variables
from tests.harness.deploy.compose_processes import Running, running_services, wait_for_drafters
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.schema import schema_errors
from tests.harness.suite.skipped import needs
from tests.harness.waiting import LONG_PATIENCE, sometimes
from verifier_service.reading.local_address import read_local_address
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
PROFILES = ("cpu", "gpu")
WITH_DRAFTERS = {"cpu": "cpu", "gpu": "gpu-2"}
"""The profile that includes drafter services: a separate one on GPUs, since they need another GPU."""
OURS = ("verifier", "drafter", "gateway")
PROMETHEUS = ("prometheus.yml", "prometheus.tls.yml")
KINDS: dict[str, tuple[str, Any]] = {
    "verifier": ("DRAFTWIRE_", VerifierSettings),
    "drafter": ("DRAFTWIRE_", DrafterSettings),
    "gateway": ("DRAFTWIRE_GATEWAY_", GatewaySettings),
}


def services(profile: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = read_compose(FILE, environment or {}, profile)["services"]
    return found


EACH = [
    pytest.param(profile, name, id=f"{profile}-{name}")
    for profile in (*PROFILES, "gpu-2")
    for name in services(profile)
]
OUR_OWN = [case for case in EACH if "build" in services(str(case.values[0]))[str(case.values[1])]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a$$b", "a$b"),
        ("$SET/${SET}", "x/x"),
        ("${UNSET:-d}${EMPTY:-d}${EMPTY-d}${SET:-d}", "ddx"),
        ("${UNSET-}", ""),
    ],
)
def test_interpolation(text: str, expected: str) -> None:
    assert interpolated(text, {"SET": "x", "EMPTY": ""}) == expected


@pytest.mark.parametrize("text", ["$UNSET", "${UNSET}", "${UNSET?why}", "${EMPTY:?why}", "a$", "${a.b}"])
def test_interpolation_without_a_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no value|without a variable"):
        interpolated(text, {"EMPTY": ""})


def test_the_file_is_valid(tmp_path: Path) -> None:
    resolved = tmp_path / "resolved.yml"
    file = read_compose(FILE, {})
    resolved.write_text(yaml.safe_dump(file))
    for path in (FILE, resolved):
        assert schema_errors(path) == ""
    file["services"]["verifier"]["restarts"] = "always"
    resolved.write_text(yaml.safe_dump(file))
    assert "'restarts'" in schema_errors(resolved)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_has_all_it_needs(profile: str) -> None:
    found = services(profile)
    assert len([name for name in found if name.startswith("drafter")]) == (2 if profile == "cpu" else 0)
    found |= services(WITH_DRAFTERS[profile])
    names = {
        alias
        for name, service in found.items()
        for alias in (name, *(service["networks"]["services"]["aliases"] if "gpu" in name else ()))
    }
    assert {"verifier", "drafter-1", "gateway", "prometheus", "grafana"} <= names
    assert ("drafter-2" in names) == (profile == "cpu") and ("dcgm-exporter" in names) == (profile == "gpu")
    for service in found.values():
        for name, condition in service.get("depends_on", {}).items():
            assert name in found or not condition.get("required", True)
        if "build" in service:
            told = [value for key, value in service["environment"].items() if re.search("VERIFIER$|ADVERTISE$", key)]
            assert {address.partition(":")[0] for address in told} <= names


def test_no_variable_needs_a_value_and_each_is_explained() -> None:
    read_compose(FILE, {})  # raises if a variable needs a value
    text = "\n".join(line.partition(" #")[0] for line in FILE.read_text().splitlines() if not line.startswith("#"))
    own = set(re.findall(r"^ +([A-Z_]+):$", text, re.MULTILINE))  # without a value: set by the user
    page = (ROOT / "docs/deploying.md").read_text()
    (section,) = re.findall(r"^## Docker Compose$.*?^## ", page, re.DOTALL | re.MULTILINE)
    told = set(re.findall(r"^\| `([A-Z_0-9]+)` \|", section, re.MULTILINE))
    assert told == variables(text) | own


def test_compose_without_a_profile_runs_on_cpus() -> None:
    """Compose takes it from .env if no --profile is given; the first line of both files names the other one."""
    lines = (ROOT / ".env").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["COMPOSE_PROFILES=cpu"]
    for first in (lines[0], FILE.read_text().partition("\n")[0]):
        assert "docker compose --profile gpu up" in first
    ignored = subprocess.run(["git", "check-ignore", "--quiet", ".env"], cwd=ROOT, check=False)
    assert ignored.returncode == 1 and "/local.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_drafters_on_other_hosts_are_one_variable() -> None:
    for profile, name in (("cpu", "verifier"), ("gpu", "verifier-gpu")):
        own = services(profile)[name]["environment"].get("DRAFTWIRE_DRAFTER")
        assert own == (None if profile == "cpu" else "local:draft?model=Qwen/Qwen3-0.6B&kv_slots=32768")
        told = services(profile, {"DRAFTWIRE_DRAFTER": "far:50052,farther:50052"})[name]["environment"]
        assert told["DRAFTWIRE_DRAFTER"] == "far:50052,farther:50052"


@pytest.mark.parametrize(("profile", "name"), EACH)
def test_a_service_can_do_no_more_than_it_must(profile: str, name: str) -> None:
    service = services(profile)[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert set(service["deploy"]["resources"]["limits"]) == {"memory", "pids"}
    assert service["healthcheck"]["test"][0] == "CMD"
    assert not {"privileged", "network_mode", "pid", "cap_add", "user"} & set(service)
    for published in service.get("ports", []):
        assert published.startswith("127.0.0.1:")


@pytest.mark.parametrize(("profile", "name"), OUR_OWN)
def test_a_service_is_told_what_there_is_to_tell(profile: str, name: str) -> None:
    """A variable that nothing reads would be a silent mistake."""
    service = services(profile, {"HF_TOKEN": "t", "DRAFTWIRE_API_KEYS": "k", "DRAFTWIRE_DRAFTER": "a:1"})[name]
    kind = service["build"]["target"]
    prefix, settings = KINDS[kind]
    known = {variable_of(settings, field) for field in settings.model_fields} | {"HF_TOKEN", "DRAFTWIRE_API_KEYS"}
    assert set(service["environment"]) <= known
    assert set(Dockerfile(ROOT / "Dockerfile").image(kind).environment) <= known | {
        "PATH", "HOME", "HF_HOME", "PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "PYTHONUNBUFFERED",
        "DRAFTWIRE_PROBE_ADDRESS", "DRAFTWIRE_LOG_FORMAT", "TORCH_DISABLE_NATIVE_JIT", "TRITON_CACHE_DIR",
        "LD_LIBRARY_PATH",
    }  # fmt: skip
    grace = float(service["environment"][f"{prefix}SHUTDOWN_GRACE_SECONDS"])
    assert grace < float(service["stop_grace_period"].removesuffix("s"))


@pytest.mark.parametrize(("profile", "name"), OUR_OWN)
def test_a_service_takes_what_it_is_told(profile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = services(profile)[name]
    kind = service["build"]["target"]
    for variable in [each for each in os.environ if each.startswith("DRAFTWIRE_")]:
        monkeypatch.delenv(variable)
    for variable, value in (Dockerfile(ROOT / "Dockerfile").image(kind).environment | service["environment"]).items():
        monkeypatch.setenv(variable, value)
    settings = load_settings(KINDS[kind][1], [])
    assert settings.listen.startswith("0.0.0.0:") and settings.insecure
    if kind == "drafter":
        assert settings.advertise.partition(":")[0] == name.removesuffix("-gpu")


def test_a_target_on_vllm_has_no_setting_of_the_other_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"DRAFTWIRE_VERIFIER_GPUS": "2", "DRAFTWIRE_ENGINE_ARGUMENTS": "--dtype float16", "DRAFTWIRE_DRAFTER": "a:1"}
    file = read_compose(FILE, told, "gpu", overrides=[ROOT / "docker-compose.vllm.yml"])
    resolved = tmp_path / "resolved.yml"
    resolved.write_text(yaml.safe_dump(file))
    assert schema_errors(resolved) == ""
    service = file["services"]["verifier-gpu"]
    assert service["image"].endswith("-vllm") and "build" not in service and "gpu" in service["profiles"]
    for variable, value in service["environment"].items():
        monkeypatch.setenv(variable, value)
    settings = load_settings(VerifierSettings, [])
    assert (settings.engine, settings.model, settings.drafter) == ("vllm", "Qwen/Qwen3-4B", ("a:1",))
    assert settings.engine_arguments == "--tensor-parallel-size=2 --dtype float16"


@pytest.mark.parametrize("name", ["verifier-gpu", "drafter-1-gpu"])
def test_gpus(name: str) -> None:
    service = services("gpu-2" if name == "drafter-1-gpu" else "gpu")[name]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    which: dict[str, Any] = {"count": "1"} if name == "verifier-gpu" else {"device_ids": ["1"]}
    assert device == {"driver": "nvidia", "capabilities": ["gpu"]} | which
    assert service["shm_size"] == "1g"
    # Docker mounts a tmpfs noexec, and compiled kernels are loaded like libraries.
    cache = Dockerfile(ROOT / "Dockerfile").image("verifier").environment["TRITON_CACHE_DIR"]
    assert f"triton:{cache}" in service["volumes"] and len(service["volumes"]) == 3
    assert service["environment"]["DRAFTWIRE_DEVICE"] == "cuda"


def test_one_gpu_has_its_draft_model_in_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would take turns on it. Both models are open to everyone, and fit into 24 GB."""
    environment = services("gpu")["verifier-gpu"]["environment"]
    assert "HF_TOKEN" not in environment
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    (drafter,) = load_settings(VerifierSettings, ["--device", "cuda"]).drafter
    _, name, options = read_local_address("drafter", drafter).partition("draft")
    assert name == "draft" and "Qwen/Qwen3-0.6B" in options.replace("%2F", "/")
    share = float(environment["DRAFTWIRE_GPU_MEMORY_UTILIZATION"])
    slots = int(re.findall(r"kv_slots=(\d+)", drafter)[0])
    # Bytes of Qwen3 0.6B in bfloat16, and of its slots: 28 layers with 8 key-value heads of 128.
    draft = 1.2e9 + slots * 28 * 8 * 128 * 2 * 2
    total, graphs = 23.6 * 2**30, 1e9
    assert draft + graphs < (1 - share) * total
    # Qwen3 4B, graphs and largest step, and slots for some requests: 36 layers with 8 key-value heads of 128.
    assert share * total > 8.1e9 + 1.5e9 + 32_768 * 36 * 8 * 128 * 2 * 2


def test_older_drivers_need_another_torch() -> None:
    page = (ROOT / "docs/deploying.md").read_text()
    (index,) = re.findall(r"`TORCH_INDEX_URL=(https://\S+/cu\d+)`", page)
    for told, expected in (({}, ""), ({"TORCH_INDEX_URL": index}, index)):
        for profile, name in (("gpu", "verifier-gpu"), ("gpu-2", "drafter-1-gpu")):
            assert services(profile, told)[name]["build"]["args"]["TORCH_INDEX_URL"] == expected
            assert services(profile, told)[name]["build"]["args"]["EXTRAS"] == "serve,tracing,gpu"


def test_the_verifier_takes_the_gpus_memory() -> None:
    names = "DRAFTWIRE_KV_SLOTS", "DRAFTWIRE_GPU_MEMORY_UTILIZATION"
    for given, expected in (((), ["0", "0.7"]), (("4096", "0.8"), ["4096", "0.8"])):
        for name, service in services("gpu", dict(zip(names, given, strict=False))).items():
            told = [service.get("environment", {}).get(each) for each in names]
            assert told == (expected if name == "verifier-gpu" else [None, None])


@pytest.mark.parametrize("count", [1, 4])
def test_a_target_is_split_among_gpus_by_one_variable(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {} if count == 1 else {"DRAFTWIRE_VERIFIER_GPUS": str(count)}
    found = services("gpu", told)
    for name, service in found.items():
        (device,) = service["deploy"]["resources"].get("reservations", {}).get("devices", [{}])
        assert device.get("count") == {"verifier-gpu": str(count), "dcgm-exporter": "all"}.get(name)
    image = Dockerfile(ROOT / "Dockerfile").image("verifier")
    for variable in [each for each in os.environ if each.startswith("DRAFTWIRE_")]:
        monkeypatch.delenv(variable)
    for variable, value in (image.environment | found["verifier-gpu"]["environment"]).items():
        if variable.startswith("DRAFTWIRE_"):
            monkeypatch.setenv(variable, value)
    settings = load_settings(VerifierSettings, ["--kv-slots", "0"])
    assert (settings.device, settings.tensor_parallel, settings.rank) == ("cuda", count, 0)
    # What each of the other ranks is started with: the same command, and its place.
    (program,) = image.entrypoint
    # The kernel starts a script with the Python that its first line names.
    monkeypatch.setattr(sys, "orig_argv", ["python", f"/opt/draftwire/bin/{program}"])
    commands: list[list[str]] = []
    places: list[dict[str, str]] = []

    def start(command: list[str], env: dict[str, str], **_: object) -> None:
        commands.append(command)
        places.append(env)

    monkeypatch.setattr(rank_processes.subprocess, "Popen", start)
    for rank in range(1, count):
        rank_processes._start(rank, count, 29500)
    assert commands == [[sys.executable, "/opt/draftwire/bin/draftwire-verifier"]] * (count - 1)
    for rank, place in enumerate(places, start=1):
        with monkeypatch.context() as patch:
            for variable, value in place.items():
                patch.setenv(variable, value)
            other = load_settings(VerifierSettings, [])
            assert (other.device, other.tensor_parallel, other.rank) == ("cuda", count, rank)
        assert other.model == settings.model


def test_a_number_of_gpus_is_valid(tmp_path: Path) -> None:
    """Compose takes the text of a variable for a number of devices, or refuses it."""
    resolved = tmp_path / "resolved.yml"
    resolved.write_text(yaml.safe_dump(read_compose(FILE, {"DRAFTWIRE_VERIFIER_GPUS": "4"})))
    assert schema_errors(resolved) == ""


@pytest.mark.parametrize("file", PROMETHEUS)
def test_prometheus_misses_no_drafter_of_a_profile_that_does_not_run(file: str) -> None:
    told = yaml.safe_load((ROOT / "deploy/compose" / file).read_text())
    (job,) = [each for each in told["scrape_configs"] if each["job_name"] == "drafter"]
    assert [each["names"] for each in job["dns_sd_configs"]] == [["drafter-1", "drafter-2"]]
    (gpus,) = [each for each in told["scrape_configs"] if each["job_name"] == "gpu"]
    assert [(each["names"], each["port"]) for each in gpus["dns_sd_configs"]] == [(["dcgm-exporter"], 9400)]


def test_images_carry_a_version_and_no_tag_that_moves() -> None:
    told = {"DRAFTWIRE_VERSION": "0.1.0.dev9+gabc", "DRAFTWIRE_REVISION": "abc", "DRAFTWIRE_TAG": "0.1.0.dev9-gabc"}
    for profile in (*PROFILES, "gpu-2"):
        for name, service in services(profile, told).items():
            _, _, tag = service["image"].partition(":")
            assert tag and "latest" not in tag, name
            if "build" in service:
                arguments = service["build"]["args"]
                assert (arguments["DRAFTWIRE_VERSION"], arguments["DRAFTWIRE_REVISION"]) == ("0.1.0.dev9+gabc", "abc")
                assert tag.startswith("0.1.0.dev9-gabc")


def test_the_mounts_are_there() -> None:
    for name, service in services("cpu").items():
        for mount in service.get("volumes", []):
            source = mount.partition(":")[0]
            assert source in read_compose(FILE, {})["volumes"] or (ROOT / source).exists(), (name, source)


@pytest.mark.processes
@needs("promtool")
class TestPromtool:
    @pytest.mark.parametrize("file", PROMETHEUS)
    def test_prometheus_takes_the_configuration(self, file: str, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").touch()
        path = tmp_path / "prometheus.yml"
        path.write_text((ROOT / "deploy/compose" / file).read_text().replace("/etc/prometheus/ca.crt", "ca.crt"))
        (tmp_path / "rules").symlink_to(ROOT / "deploy/prometheus/rules")
        done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    with running_services(services("cpu"), tmp_path_factory.mktemp("compose")) as started:
        yield started


@pytest.mark.slow
class TestProcesses:
    """The services of the profile cpu, as processes."""

    def test_they_work_together(self, running: dict[str, Running]) -> None:
        with Client(running["verifier"].address, timeout=LONG_PATIENCE) as client:
            wait_for_drafters(client)
            expected = client.generate("def fib(n):", max_tokens=24, temperature=0)
        always = {"planning": "always"}  # the verifier waits for drafts
        asked = {"prompt": "def fib(n):", "max_tokens": 24, "temperature": 0, "speculation": always}
        body = json.dumps(asked).encode()
        request = urllib.request.Request(
            f"http://{running['gateway'].address}/v1/completions", body, {"content-type": "application/json"}
        )

        def drafted() -> int:
            with urllib.request.urlopen(request, timeout=LONG_PATIENCE) as response:
                answer = json.load(response)
            assert answer["choices"][0]["text"] == expected.text
            return int(answer["speculation"]["draft_tokens"])

        sometimes(drafted, "drafts come in time")

    def test_they_end_on_the_images_signal(self, running: dict[str, Running]) -> None:
        assert {stage.stages[-1].name for stage in map(Dockerfile(ROOT / "Dockerfile").image, OURS)} == set(OURS)
        for kind in OURS:
            assert Dockerfile(ROOT / "Dockerfile").image(kind).values("STOPSIGNAL") == ["SIGTERM"]
        for name in ("gateway", "drafter-1", "drafter-2", "verifier"):
            assert running[name].stop() == 0, running[name].log.read_text()
