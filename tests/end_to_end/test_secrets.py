"""No log shows prompts, outputs, tokens or keys, not even at the most verbose level."""

from pathlib import Path

import httpx
import pytest

from draftwire import Client, DraftwireError, Speculation
from tests.harness.gateway_process import GatewayProcess
from tests.harness.service_process import ServiceProcess
from tests.harness.services import STEADY_VERIFIER, RunningService
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.slow

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


def test_no_log_shows_prompts_outputs_or_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", HUB_TOKEN)
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(f'[everybody]\ntoken = "{ADMIN}"\nroles = ["admin"]\n')
    token = tmp_path / "token"
    token.write_text(ADMIN)
    safe = ("--accepted-tokens", str(accepted), "--token-file", str(token), "--log-level", "debug")
    logs = []
    running: list[ServiceProcess] = []
    try:
        drafter = RunningService("drafter_service", "draft", safe, tmp_path)
        running.append(drafter)
        verifier = RunningService(STEADY_VERIFIER, "target", (*safe, "--drafter", drafter.address), tmp_path)
        running.append(verifier)
        gateway = GatewayProcess(
            tmp_path, "--verifier", verifier.address, "--token-file", str(token),
            "--log-level", "debug", "--api-key", API_KEY,
        )  # fmt: skip
        running.append(gateway)
        with Client(verifier.address, token=ADMIN, timeout=PATIENCE) as client:
            text = ask(client)
        with httpx.Client(
            base_url=gateway.url, headers={"authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE
        ) as http:
            model = http.get("/v1/models").json()["data"][0]["id"]
            asked = {"model": model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
            assert http.post("/v1/completions", json=asked).json()["choices"][0]["text"] == text
            form = {"response_format": {"type": SECRET}}
            for wrong in ({"stop": SECRET * 100}, {"prompt": PROMPT * 10_000}, {"n": -1}, form):
                assert http.post("/v1/completions", json=asked | wrong).status_code >= 400
            assert http.post("/v1/completions", content=PROMPT).status_code >= 400
            assert http.get("/v1/models", headers={"authorization": f"Bearer {SECRET}"}).status_code == 401
    finally:
        for process in reversed(running):
            process.stop()
            logs.append(process.log.read_text(errors="replace"))
    told = "\n".join(logs)
    assert '"level": "debug"' in told and "request finished" in told and "sequence opened" in told
    for secret in (SECRET, text.strip().splitlines()[0].strip(), HUB_TOKEN, API_KEY, ADMIN):
        assert len(secret) > 3
        assert secret not in told
