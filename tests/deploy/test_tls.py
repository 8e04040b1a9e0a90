"""TLS and tokens in docker-compose.tls.yml, with the files from deploy/tls/make.sh."""

import json
import ssl
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from drafter_service.settings import DrafterSettings
from draftwire import Client, PermissionDeniedError, RetryPolicy, Tls, TokenFile, UnauthenticatedError, UnavailableError
from draftwire_core.runtime.process.settings import variable_of
from draftwire_core.runtime.security.accepted_tokens import AcceptedTokens
from gateway_service.settings import GatewaySettings
from tests.harness.deploy.compose_file import merged, read_compose, variables
from tests.harness.deploy.compose_processes import Running, running_services, wait_for_drafters
from tests.harness.deploy.schema import schema_errors
from tests.harness.waiting import PATIENCE, sometimes
from verifier_service.settings import VerifierSettings

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
OVERRIDE = ROOT / "docker-compose.tls.yml"
PROFILES = ("cpu", "gpu")
COMPONENTS = ("verifier", "drafter", "gateway")
PREFIXES = {"verifier": "DRAFTWIRE_", "drafter": "DRAFTWIRE_", "gateway": "DRAFTWIRE_GATEWAY_"}
SETTINGS: dict[str, Any] = {"verifier": VerifierSettings, "drafter": DrafterSettings, "gateway": GatewaySettings}
ONCE = RetryPolicy(attempts_per_address=1)


def make(place: Path) -> None:
    subprocess.run([ROOT / "deploy/tls/make.sh", place], check=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "tls"
    make(place)
    return place


def services(profile: str, place: Path = Path("tls")) -> dict[str, Any]:
    environment = {"DRAFTWIRE_TLS_DIRECTORY": str(place)}
    found: dict[str, Any] = read_compose(COMPOSE, environment, profile, overrides=[OVERRIDE])["services"]
    return found


def names_of(certificate: Path) -> list[str]:
    extensions = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
    return extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)


def is_for(certificate: Path, host: str) -> bool:
    """Whether a certificate covers a name, possibly by a `*` for its first part."""
    return bool({host, f"*.{host.partition('.')[2]}"} & set(names_of(certificate)))


# ---- what make.sh makes


def test_only_the_owner_gets_at_it(made: Path) -> None:
    """Programs in containers are other users, so all may read the files; the directory is what is closed."""
    assert made.stat().st_mode & 0o777 == 0o700
    assert (made / "ca.key").stat().st_mode & 0o777 == 0o600
    for file in (path for place in made.iterdir() if place.is_dir() for path in place.iterdir()):
        assert file.stat().st_mode & 0o777 == 0o644, file
        assert file.name != "ca.key"


def test_a_second_run_keeps_authority_and_tokens(tmp_path: Path) -> None:
    make(tmp_path / "tls")
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    make(tmp_path / "tls")
    after = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    changed = {str(path) for path in before if before[path] != after[path]}
    assert before.keys() == after.keys()
    certificates = {f"tls/{each}-tls/tls.{kind}" for each in COMPONENTS for kind in ("crt", "key")}
    assert changed - {"tls/ca.srl"} == certificates


def test_each_caller_has_a_role_of_its_own(made: Path) -> None:
    for component in ("verifier", "drafter"):
        accepted = made / f"{component}-tokens" / "accepted.toml"
        AcceptedTokens(str(accepted))
        roles = {name: entry["roles"] for name, entry in tomllib.loads(accepted.read_text()).items()}
        assert roles == {"services": ["draft"], "gateway": ["generate"], "operator": ["admin"]}
    tokens = {name: (made / name / "token").read_text() for name in ("verifier-tokens", "gateway-tokens", "operator")}
    assert len(set(tokens.values())) == 3
    assert (made / "drafter-tokens" / "token").read_text() == tokens["verifier-tokens"]


# ---- docker-compose.tls.yml


def test_the_override_is_valid(tmp_path: Path) -> None:
    resolved = tmp_path / "resolved.yml"
    resolved.write_text(yaml.safe_dump(read_compose(COMPOSE, {}, overrides=[OVERRIDE])))
    for path in (OVERRIDE, resolved):
        assert schema_errors(path) == ""


def test_an_override_changes_what_it_names() -> None:
    base = {"environment": {"A": "1", "B": "2"}, "volumes": ["a:/a", "b:/b:ro"], "ports": ["1:1"]}
    override = {"environment": {"B": "3"}, "volumes": ["c:/b:ro"]}
    assert merged(base, override) == {
        "environment": {"A": "1", "B": "3"},
        "volumes": ["a:/a", "c:/b:ro"],
        "ports": ["1:1"],
    }
    with pytest.raises(ValueError, match="ports: is not known here"):
        merged(base, {"ports": ["2:2"]})


def test_its_variable_is_explained_and_its_directory_is_not_committed() -> None:
    assert variables(OVERRIDE.read_text()) == {"DRAFTWIRE_TLS_DIRECTORY"}
    assert "| `DRAFTWIRE_TLS_DIRECTORY` | `./tls` |" in (ROOT / "docs/deploying.md").read_text()
    assert "/tls/" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize("profile", PROFILES)
def test_the_override_is_for_all_and_only_what_is_there(profile: str, made: Path) -> None:
    base = read_compose(COMPOSE, {})["services"]
    assert base.keys() == read_compose(COMPOSE, {}, overrides=[OVERRIDE])["services"].keys()
    for name, service in services(profile, made).items():
        if "build" not in service:
            continue
        kind = service["build"]["target"]
        prefix = PREFIXES[kind]
        known = {variable_of(SETTINGS[kind], field) for field in SETTINGS[kind].model_fields}
        probes = {"DRAFTWIRE_PROBE_ADDRESS", "DRAFTWIRE_TLS_CA"}
        environment = service["environment"]
        assert environment.keys() <= known | probes
        assert environment[f"{prefix}INSECURE"] == "false"
        mounts = {target: Path(source) for source, target, *_ in (each.split(":") for each in service["volumes"])}
        files = [value for value in environment.values() if value.startswith(("/tls/", "/tokens/"))]
        assert len(files) == 5, name
        for file in map(Path, files):
            assert (mounts[str(file.parent)] / file.name).exists(), (name, file)


@pytest.mark.parametrize("profile", PROFILES)
def test_certificates_are_for_the_names_that_containers_call(profile: str, made: Path) -> None:
    for service in services(profile, made).values():
        for variable, certificate in (
            ("DRAFTWIRE_ANNOUNCE_TO", "verifier"),
            ("DRAFTWIRE_GATEWAY_VERIFIER", "verifier"),
            ("DRAFTWIRE_ADVERTISE", "drafter"),
        ):
            if address := service.get("environment", {}).get(variable):
                assert is_for(made / f"{certificate}-tls/tls.crt", address.partition(":")[0])


def test_prometheus_asks_the_gateway_by_tls_and_all_else_as_before() -> None:
    place = ROOT / "deploy/compose"
    plain, secured = (yaml.safe_load((place / name).read_text()) for name in ("prometheus.yml", "prometheus.tls.yml"))
    (gateway,) = [job for job in secured["scrape_configs"] if job["job_name"] == "gateway"]
    assert (gateway.pop("scheme"), gateway.pop("tls_config")) == ("https", {"ca_file": "/etc/prometheus/ca.crt"})
    assert secured == plain
    mounts = services("cpu")["prometheus"]["volumes"]
    assert "./deploy/compose/prometheus.tls.yml:/etc/prometheus/prometheus.yml:ro" in mounts
    assert "./deploy/compose/prometheus.yml:/etc/prometheus/prometheus.yml:ro" not in mounts
    assert any(mount.endswith("/operator/ca.crt:/etc/prometheus/ca.crt:ro") for mount in mounts)


# ---- its services, as processes


@pytest.fixture(scope="module")
def running(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Running]]:
    with running_services(services("cpu", made), tmp_path_factory.mktemp("compose")) as started:
        yield started


def test_they_work_together(running: dict[str, Running], made: Path) -> None:
    operator = TokenFile(made / "operator/token")
    tls = Tls(made / "operator/ca.crt")
    with Client(running["verifier"].address, timeout=PATIENCE, tls=tls, token=operator) as client:
        wait_for_drafters(client)
        expected = client.generate("def fib(n):", max_tokens=24, temperature=0)
    always = {"planning": "always"}  # the verifier waits for drafts
    asked = {"prompt": "def fib(n):", "max_tokens": 24, "temperature": 0, "speculation": always}
    body = json.dumps(asked).encode()
    url = f"https://{running['gateway'].address}/v1/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    trusting = ssl.create_default_context(cafile=made / "operator/ca.crt")

    def drafted() -> int:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=trusting) as response:
            answer = json.load(response)
        assert answer["choices"][0]["text"] == expected.text
        return int(answer["speculation"]["draft_tokens"])

    sometimes(drafted, "drafts come in time")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(request, timeout=PATIENCE)


def test_strangers_are_turned_away(running: dict[str, Running], made: Path) -> None:
    tls = Tls(made / "operator/ca.crt")
    for name in ("verifier", "drafter-1"):
        with Client(running[name].address, retry=ONCE, timeout=PATIENCE) as client, pytest.raises(UnavailableError):
            client.health()
    address = running["verifier"].address
    with Client(address, tls=tls, retry=ONCE) as client, pytest.raises(UnauthenticatedError):
        client.model_info()
    with Client(address, tls=tls, token=TokenFile(made / "gateway-tokens/token"), retry=ONCE) as client:
        with pytest.raises(PermissionDeniedError, match="admin"):
            client.drafters.detach("drafter-1")


def test_the_probe_of_a_pod(running: dict[str, Running]) -> None:
    """The verifier's settings name drafters' certificates; its own health check names the verifier's."""
    environment = {"DRAFTWIRE_TLS_SERVER_NAME": "draftwire-drafter.draftwire.svc"}
    assert running["verifier"].probe("--timeout", "2", environment=environment).returncode == 1
    done = running["verifier"].probe("--tls-server-name", "draftwire-verifier.draftwire.svc", environment=environment)
    assert done.returncode == 0, done.stderr
