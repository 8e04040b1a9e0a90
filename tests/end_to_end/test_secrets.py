"""No log shows prompts, outputs, tokens or keys, not even at the most verbose level."""

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from draftwire import Client, DraftwireError, Speculation
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

SECRET = "xyzzySecretPlugh"
PROMPT = f"def {SECRET}(n):\n    return"
HUB_TOKEN = "hf_0123456789abcdefSecret"
API_KEY = "api-key-0123456789-secret"
ADMIN = "admin-token-0123456789-secret"


def ask(client: Client) -> str:
    """Sends requests that succeed and requests that fail, all containing the secret."""
    text = client.generate(PROMPT, max_tokens=24, temperature=0.0, stop=[SECRET[::-1]]).text
    assert text
    client.tokenize(PROMPT)
    for wrong in (
        {"stop": [SECRET * 100]},
        {"max_tokens": 10**6},
        {"speculation": Speculation(prediction=SECRET * 10_000)},
        {"bad_words": [SECRET * 100]},
    ):
        with pytest.raises(DraftwireError):
            client.generate(PROMPT, **wrong)
    with pytest.raises(DraftwireError):
        client.chat([{"role": "user", "content": PROMPT * 10_000}], max_tokens=4)
    return text


@dataclass
class Verbose:
    """Services that log all they can, with secrets in their settings."""

    drafter: ServiceProcess
    verifier: ServiceProcess
    gateway: ServiceProcess

    def stop(self) -> str:
        """Stops the services; returns their logs."""
        for process in (self.gateway, self.verifier, self.drafter):
            assert process.stop() == 0
        return "\n".join(
            process.log.read_text(errors="replace") for process in (self.gateway, self.verifier, self.drafter)
        )


@pytest.fixture(scope="module")
def verbose(module_services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verbose]:
    place = tmp_path_factory.mktemp("secrets")
    accepted, token = place / "accepted.toml", place / "token"
    accepted.write_text(f'[everybody]\ntoken = "{ADMIN}"\nroles = ["admin"]\n')
    token.write_text(ADMIN)
    told = ("--token-file", str(token), "--log-level", "debug")
    safe = ("--accepted-tokens", str(accepted), *told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", HUB_TOKEN)
        drafter = module_services.drafter("draft", *safe)
        verifier = module_services.verifier("target", *safe, "--drafter", drafter.address)
        gateway = module_services.gateway("--verifier", verifier.address, *told, "--api-key", API_KEY)
        assert gateway.address
        yield Verbose(drafter, verifier, gateway)


def test_no_log_shows_prompts_outputs_or_secrets(verbose: Verbose) -> None:
    with Client(verbose.verifier.address, token=ADMIN, timeout=PATIENCE) as client:
        text = ask(client)
    with httpx.Client(
        base_url=verbose.gateway.url, headers={"authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE
    ) as http:
        model = http.get("/v1/models").json()["data"][0]["id"]
        asked = {"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        assert http.post("/v1/completions", json=asked).json()["choices"][0]["text"] == text
        form = {"response_format": {"type": SECRET}}
        for wrong in ({"stop": SECRET * 100}, {"prompt": PROMPT * 10_000}, {"n": -1}, form):
            assert http.post("/v1/completions", json=asked | wrong).status_code >= 400
        assert http.post("/v1/completions", content=PROMPT).status_code >= 400
        assert http.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"}).status_code == 401
    told = verbose.stop()
    assert '"level": "debug"' in told and "request finished" in told and "sequence opened" in told
    for secret in (SECRET, text.strip().splitlines()[0].strip(), HUB_TOKEN, API_KEY, ADMIN):
        assert len(secret) > 3
        assert secret not in told
