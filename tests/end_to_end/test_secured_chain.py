"""A verifier, a drafter, a gateway, the SDK and the command line as real processes, over mutual TLS with tokens."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from draftwire import (
    Client,
    PermissionDeniedError,
    RetryPolicy,
    Speculation,
    Tls,
    TokenFile,
    UnauthenticatedError,
    UnavailableError,
)
from draftwire.edge import EdgeClient
from tests.harness.certificates import Authority, Pair
from tests.harness.checkout import MODELS
from tests.harness.command import Command
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = pytest.mark.processes

PROMPT = "def fib(n):\n"
SECRETS = {name: f"{name}-secret-0123456789" for name in ("generate", "draft", "admin")}
ONCE = RetryPolicy(attempts_per_address=1)


@dataclass
class Chain:
    """The running services, and the credentials of a client."""

    verifier: ServiceProcess
    drafter: ServiceProcess
    directory: Path
    authority: Authority
    tls: Tls

    def client(self, role: str) -> Client:
        return Client(self.verifier.address, tls=self.tls, token=SECRETS[role], timeout=PATIENCE, retry=ONCE)

    def token_file(self, role: str) -> str:
        return str(self.directory / f"{role}.token")

    def flags(self, role: str) -> list[str]:
        """Returns the connection options of a command."""
        return [
            "--verifier", self.verifier.address, "--tls-ca", str(self.tls.ca), "--tls-client-cert", str(self.tls.cert),
            "--tls-client-key", str(self.tls.key), "--token-file", self.token_file(role),
        ]  # fmt: skip


@pytest.fixture(scope="module")
def chain(module_services: Services, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    directory = tmp_path_factory.mktemp("secured")
    authority = Authority(directory)
    (directory / "accepted.toml").write_text(
        "".join(f'[{role}-token]\ntoken = "{secret}"\nroles = ["{role}"]\n' for role, secret in SECRETS.items())
    )
    for role, secret in SECRETS.items():
        (directory / f"{role}.token").write_text(secret)

    def flags(name: str) -> tuple[str, ...]:
        pair = authority.issue(name)
        return (
            "--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(authority.file),
            "--tls-ca", str(authority.file), "--accepted-tokens", str(directory / "accepted.toml"),
            "--token-file", str(directory / "draft.token"), "--log-level", "debug",
        )  # fmt: skip

    tls = authority.tls(authority.issue("client", "client.internal"))
    verifier = module_services.verifier("target", *flags("verifier"))
    announced = ("--verifier", verifier.address, "--name", "announced", "--verifier-weight", "draft-token=2.5")
    drafter = module_services.drafter("draft", *announced, *flags("drafter")).serving()
    return Chain(verifier, drafter, directory, authority, tls)


def wait_for_drafter(chain: Chain) -> None:
    assert chain.drafter.address
    with chain.client("generate") as client:
        eventually(lambda: [each.state for each in client.drafters.list()] == ["ready"], "the drafter is ready")


def test_a_drafter_announces_itself_and_drafts(chain: Chain) -> None:
    wait_for_drafter(chain)
    with chain.client("generate") as client:

        def drafted() -> int:
            stats = client.generate(
                PROMPT, max_tokens=64, temperature=0.0, speculation=Speculation(planning="always")
            ).speculation
            assert {share.name for share in stats.drafters} <= {"announced", "drafters"}  # vLLM does not tell which
            return stats.accepted_tokens

        sometimes(drafted, "what it drafts is accepted")


def test_roles(chain: Chain) -> None:
    wait_for_drafter(chain)
    with chain.client("generate") as client:
        with pytest.raises(PermissionDeniedError, match="generate-token lacks the role that this call requires: admin"):
            client.drafters.attach("local:ngram")
        with pytest.raises(PermissionDeniedError):
            client.follow_traffic().__next__()
        with pytest.raises(PermissionDeniedError, match="admin"):
            client.drafters.load_model(chain.drafter.address, "anything")
        eventually(lambda: client.drafters.load_state(chain.drafter.address).streams == 1, "the verifier's")
        state = client.drafters.load_state(chain.drafter.address)
        assert state.verifiers == [], "it is told of itself alone, and is no verifier"
    with chain.client("draft") as client, pytest.raises(PermissionDeniedError, match="generate"):
        client.generate(PROMPT)
    with chain.client("admin") as client:
        client.drafters.attach("local:ngram", "extra")
        client.drafters.detach("extra")
        [share] = client.drafters.load_state(chain.drafter.address).verifiers
        assert (share.name, share.weight, share.streams) == ("draft-token", 2.5, 1)


def test_strangers(chain: Chain, tmp_path: Path) -> None:
    address = chain.verifier.address
    for token in (None, "unknown-secret-0123456789"):
        with Client(address, tls=chain.tls, token=token, retry=ONCE) as client, pytest.raises(UnauthenticatedError):
            client.model_info()
    other = Authority(tmp_path)
    for tls in (None, Tls(chain.authority.file), other.tls(), other.tls(other.issue("client", "client.internal"))):
        with Client(address, tls=tls, token=SECRETS["admin"], retry=ONCE, timeout=PATIENCE) as client:
            with pytest.raises(UnavailableError):
                client.model_info()


def test_the_command_line(chain: Chain, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wait_for_drafter(chain)
    run = Command(monkeypatch, capsys)
    told = run("generate", PROMPT, "--max-tokens", "4", *chain.flags("generate"))
    assert (told.code, told.err) == (0, "") and told.out
    watched = run("top", "--once", "--json", "--interval", "0.2", *chain.flags("generate"))
    assert (watched.code, watched.err) == (0, "")
    health = [flag for flag in chain.flags("generate")[2:] if flag != "--token-file"][:-1]  # needs no token
    assert run("probe", "--address", chain.verifier.address, *health).code == 0
    refused = run("drafters", "detach", "announced", *chain.flags("generate"))
    assert refused.code == 1 and "role that this call requires: admin" in refused.err
    assert not any(secret in refused.err + told.out for secret in SECRETS.values())


def test_a_gateway_before_it_serves_https_and_takes_new_certificates(
    chain: Chain, services: Services, tmp_path: Path
) -> None:
    web = Authority(tmp_path)
    pair = web.issue("web")
    gateway = services.gateway(*chain.flags("generate"), "--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    try:
        url = gateway.url.replace("http:", "https:")
        body = {"model": "any", "prompt": PROMPT, "max_tokens": 4}

        def post(authority: Authority) -> int:
            context = ssl.create_default_context(cafile=str(authority.file))
            with httpx.Client(verify=context, timeout=PATIENCE) as http:
                body["model"] = http.get(f"{url}/v1/models").json()["data"][0]["id"]
                return http.post(f"{url}/v1/completions", json=body).status_code

        assert post(web) == 200
        new_web = Authority(tmp_path / "new")
        new = new_web.issue("web")
        pair.cert.write_bytes(new.cert.read_bytes())
        assert post(web) == 200
        pair.key.write_bytes(new.key.read_bytes())
        assert post(new_web) == 200
        with pytest.raises(httpx.ConnectError):
            post(web)
        assert httpx.get(f"{url}/v1/models", verify=False, timeout=PATIENCE).status_code == 200
        text = gateway.log.read_text()
        assert not any(secret in text for secret in SECRETS.values())
    finally:
        gateway.stop()


def test_a_gateway_takes_clients_of_its_authority_only(chain: Chain, services: Services, tmp_path: Path) -> None:
    web, clients, strangers = (Authority(tmp_path / name) for name in ("web", "clients", "strangers"))
    pair = web.issue("web")
    gateway = services.gateway(
        *chain.flags("generate"),
        *("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(clients.file)),
    )

    def models(client: Pair | None) -> int:
        context = ssl.create_default_context(cafile=str(web.file))
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return httpx.get(
            gateway.url.replace("http:", "https:") + "/v1/models", verify=context, timeout=PATIENCE
        ).status_code

    try:
        eventually(lambda: models(clients.issue("client")) == 200, "the verifier answers in time")
        for stranger in (None, strangers.issue("client")):
            with pytest.raises(httpx.TransportError):
                models(stranger)
        # Replaces the authority.
        clients.file.write_bytes(strangers.file.read_bytes())
        eventually(lambda: models(strangers.issue("client")) == 200, "the verifier answers in time")
        with pytest.raises(httpx.TransportError):
            models(clients.issue("client"))
    finally:
        gateway.stop()


def test_no_log_shows_a_token(chain: Chain) -> None:
    for service in (chain.verifier, chain.drafter):
        text = service.log.read_text()
        assert not any(secret in text for secret in SECRETS.values())
    assert '"caller": "draft-token"' in chain.verifier.log.read_text()


@pytest.mark.slow
class TestACallerThatDrafts:
    def test_a_caller_that_drafts_itself(self, chain: Chain) -> None:
        options = {"tls": chain.tls, "token": TokenFile(chain.token_file("generate")), "timeout": 60}
        with EdgeClient(chain.verifier.address, model=str(MODELS / "draft"), **options) as client:
            # Long, since the first draft of the caller may come late: steps of this target take a millisecond.
            always = Speculation(planning="always")

            def drafts() -> bool:
                result = client.generate(PROMPT, max_tokens=400, ignore_eos=True, speculation=always)
                return "caller" in {share.name for share in result.speculation.drafters}

            sometimes(drafts, "the caller drafts in time")
