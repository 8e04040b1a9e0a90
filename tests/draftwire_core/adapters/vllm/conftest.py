"""A proposer whose pool reaches scripted drafters in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwire import Client
from draftwire_core.adapters.vllm import RemoteDrafter
from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from tests.harness.models.tiny_checkpoint import tiny_checkpoint
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_vllm import VOCABULARY, FakeVllm, following, vllm_config
from tests.harness.stand_ins.pool_drafters import Listen, listening, pool_network
from tests.harness.stand_ins.runner_v2 import PlainKernels, PlainStates, RequestV2, RunnerV2

MakeVllm = Callable[..., FakeVllm]
MakeRunner = Callable[..., RunnerV2]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the target's tokenizer."""
    return tiny_checkpoint(tmp_path_factory)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """The network on which drafters listen."""
    return pool_network(monkeypatch)


@pytest.fixture
def listen(network: Network) -> Iterator[Listen]:
    """Puts a scripted drafter on an address; by default one that knows the target's text."""
    with listening(network) as put:
        yield put


@pytest.fixture
def vllm(checkpoint: Path, network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeVllm]:
    """Creates fake vLLMs with drafters at some addresses."""
    made: list[RemoteDrafter] = []

    def make(*drafters: str, chunk: int = 1 << 20, max_model_len: int = 4096, **settings: object) -> FakeVllm:
        monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", "127.0.0.1:0")
        monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", ",".join(drafters))
        for name, value in settings.items():
            monkeypatch.setenv(f"DRAFTWIRE_VLLM_{name.upper()}", str(value))
        drafter = RemoteDrafter(vllm_config(checkpoint, max_model_len=max_model_len))
        made.append(drafter)
        fake = FakeVllm(drafter, chunk=chunk, max_model_len=max_model_len)
        drafter.bind(fake, speaks=True)
        drafter.load_model(None)
        return fake

    yield make
    for each in made:
        each.shutdown()
        assert not each.faults


@pytest.fixture
def runner(checkpoint: Path, network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeRunner]:
    """Creates stand-ins of runner V2 with drafters at some addresses."""
    made: list[RemoteSpeculator] = []

    def make(*drafters: str, **options: Any) -> RunnerV2:
        monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", "127.0.0.1:0")
        monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", ",".join(drafters))
        states = PlainStates(16, 4096, 3)
        speculator = RemoteSpeculator(vllm_config(checkpoint), torch.device("cpu"), states)
        made.append(speculator)
        speculator.init_cudagraph_manager(None)
        return RunnerV2(speculator, states, PlainKernels(), following_logits, **options)

    yield make
    for each in made:
        each.shutdown()
        assert not each.faults


def following_logits(request: RequestV2, drafts: list[int]) -> torch.Tensor:
    """The logits of the target whose text is known."""
    texts = [request.tokens + drafts[:count] for count in range(len(drafts) + 1)]
    return torch.nn.functional.one_hot(torch.tensor([following(each) for each in texts]), VOCABULARY).float()


@pytest.fixture
def client() -> Iterator[Callable[[Any], Client]]:
    """Returns the SDK's client of the pool of a drafter or speculator."""
    made: list[Client] = []

    def connect(front: Any) -> Client:
        made.append(Client(getattr(front, "drafter", front).address))
        return made[-1]

    yield connect
    for each in made:
        each.close()
