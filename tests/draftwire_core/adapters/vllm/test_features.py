"""Features of runner V2's hidden states: those of committed tokens reach the drafters that read them, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwire import Client
from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from draftwire_core.adapters.common import pool_thread
from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from draftwire_core.engine.model.features.feature_codec import decode
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape
from draftwire_core.pool.standing.pause_policy import PausePolicy
from draftwire_core.runtime.process.settings import SettingsError
from draftwire_core.runtime.process.startup_error import StartupError
from tests.draftwire_core.adapters.vllm.conftest import following_logits
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_vllm import text_after
from tests.harness.stand_ins.pool_drafters import greeting, knowing, wrong
from tests.harness.stand_ins.runner_v2 import PlainKernels, PlainStates, RequestV2, RunnerV2
from tests.harness.stand_ins.scripted_drafter import Opening, ScriptedDrafter
from tests.harness.stand_ins.tapped_config import tapped_config, tapping

HIDDEN = 6
TAPPED = (1, 2, 4)
SHAPE = FeatureShape(states=2, hidden_size=HIDDEN, width=5)
READ = (4, 1)
Make = Callable[..., RunnerV2]


def states_at(tokens: list[int], position: int) -> list[torch.Tensor]:
    """The states of each tapped layer at a position: a function of the text up to it."""
    seed = torch.tensor(tokens[: position + 1], dtype=torch.float32)
    key = (seed * torch.arange(1, position + 2)).sum()
    return [torch.sin(key * 0.01 * layer + torch.arange(HIDDEN)) for layer in TAPPED]


def hidden(request: RequestV2, drafts: list[int], positions: range) -> list[torch.Tensor]:
    found = [states_at([*request.tokens, *drafts], position) for position in positions]
    return [torch.stack(each) for each in zip(*found, strict=True)]


@pytest.fixture
def mapping() -> FeatureMap:
    torch.manual_seed(3)
    return FeatureMap(SHAPE)


@pytest.fixture
def make(checkpoint: Path, network: Network, mapping: FeatureMap, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Creates stand-ins of runner V2 that give hidden states, with drafters at some addresses."""
    made: list[RemoteSpeculator] = []

    async def fetch(address: str, sha256: str, size: int) -> bytearray:
        weights = bytearray(b"".join(mapping.weight_bytes(1 << 20)))
        assert (sha256, size) == (mapping.digest(), len(weights))
        return weights

    def start(*drafters: str, **options: Any) -> RunnerV2:
        monkeypatch.setattr(pool_thread, "fetching_weights", lambda channels: fetch)
        monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", "127.0.0.1:0")
        monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", ",".join(drafters))
        monkeypatch.setenv("DRAFTWIRE_VLLM_FEATURE_LAYERS", "4,1,2")
        states = PlainStates(16, 4096, 3)
        config = tapped_config(checkpoint, layers=4, hidden_size=HIDDEN)
        speculator = RemoteSpeculator(config, torch.device("cpu"), states)
        made.append(speculator)
        runner, model = tapping(speculator, config)
        assert runner.use_aux_hidden_state_outputs
        assert model.layers == TAPPED
        assert config.additional_config == {"draftwire_feature_layers": [1, 2, 4]}, "a compiled target is known by it"
        speculator.init_cudagraph_manager(None)
        return RunnerV2(speculator, states, PlainKernels(), following_logits, hidden=hidden, **options)

    yield start
    for each in made:
        each.shutdown()
        assert not each.faults


def reading(network: Network, mapping: FeatureMap, address: str, answer: Any, **changes: Any) -> ScriptedDrafter:
    """Puts a drafter on an address that reads features."""
    fields: dict[str, Any] = {
        "layers": READ,
        "hidden_size": HIDDEN,
        "width": SHAPE.width,
        "dtype": "float32",
        "weights_dtype": "float32",
        "weights_sha256": mapping.digest(),
    }
    features = FeatureMapMessage(**fields | changes)
    drafter = ScriptedDrafter(answer, greeting=greeting(capabilities=["features"], features=features))
    network.listen(address, drafter.converse)
    return drafter


def check(drafter: ScriptedDrafter, mapping: FeatureMap, sequence_id: int, tokens: list[int]) -> list[int]:
    """Compares the features of a sequence with those of its text. Returns their positions."""
    positions = []
    for each in drafter.features:
        if each.sequence_id == sequence_id:
            for offset, feature in enumerate(decode(each.values, SHAPE.width, "float32")):
                position = each.first_position + offset
                by_layer = dict(zip(TAPPED, states_at(tokens, position), strict=True))
                expected = mapping(torch.cat([by_layer[layer] for layer in READ])[None])[0]
                torch.testing.assert_close(feature, expected.detach())
                positions.append(position)
    return positions


@pytest.mark.parametrize("answer", [knowing, wrong], ids=["accepted", "rejected"])
@pytest.mark.parametrize("chunk", [4, 1 << 20], ids=["in pieces", "at once"])
def test_each_committed_tokens_features_come_once(
    make: Make, network: Network, mapping: FeatureMap, answer: Callable[[Opening], Any], chunk: int
) -> None:
    drafter = reading(network, mapping, "a:1", answer)
    running = make("a:1", chunk=chunk)
    with Client(running.speculator.address) as client:
        running.run(lambda: client.drafters.list()[0].state == "ready")
    running.warm_up()
    requests = [running.add(f"r{number}", list(range(number + 1, number + 12))) for number in range(3)]
    running.run(lambda: all(len(each.output) > 30 for each in requests))
    if answer is knowing:
        running.run(lambda: all(each.accepted > 10 for each in requests))
    by_prompt = {tuple(each.token_ids[:11]): each.sequence_id for each in drafter.opened}
    for request in requests:
        assert request.output == text_after(request.prompt, len(request.output))
        sequence_id, tokens = by_prompt[tuple(request.prompt)], list(request.tokens)
        running.run(lambda number=sequence_id: len(drafter.open[number].tokens) > 45)
        positions = check(drafter, mapping, sequence_id, list(request.tokens))
        assert positions == list(range(len(positions)))
        assert len(positions) >= len(tokens) - 1


def test_steps_after_which_nothing_is_drafted_have_features(make: Make, network: Network, mapping: FeatureMap) -> None:
    drafter = reading(network, mapping, "a:1", knowing)
    running = make("a:1", chunk=2)
    with Client(running.speculator.address) as client:
        running.run(lambda: client.drafters.list()[0].state == "ready")
    running.skips_drafts = True
    request = running.add("r", range(1, 12))
    running.run(lambda: len(request.output) > 5)
    running.skips_drafts = False
    running.run(lambda: request.accepted > 5)
    positions = check(drafter, mapping, drafter.opened[0].sequence_id, list(request.tokens))
    assert positions == list(range(len(positions)))
    assert len(positions) > 16


def test_a_paused_drafter_gets_the_last_ones_when_its_pause_ends(
    make: Make, network: Network, mapping: FeatureMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = reading(network, mapping, "a:1", knowing)
    running = make("a:1")
    with Client(running.speculator.address) as client:
        running.run(lambda: client.drafters.list()[0].state == "ready")
    request = running.add("r", range(1, 12))
    running.run(lambda: request.accepted > 5)
    monkeypatch.setattr(PausePolicy, "paused", True)
    paused_at, news = len(request.output), len(drafter.features)
    running.run(lambda: len(request.output) > paused_at + 80)
    assert len(drafter.features) <= news + 40, "but for those that were under way"
    monkeypatch.setattr(PausePolicy, "paused", False)
    before = request.accepted
    running.run(lambda: request.accepted > before + 5)
    positions = check(drafter, mapping, drafter.opened[0].sequence_id, list(request.tokens))
    assert positions == list(range(len(positions)))
    assert len(positions) > 11 + paused_at + 80


def test_other_layers_are_refused_by_name(make: Make, network: Network, mapping: FeatureMap) -> None:
    reading(network, mapping, "a:1", knowing, layers=[1, 3])
    running = make("a:1")
    request = running.add("r", [1, 5, 9])
    with Client(running.speculator.address) as client:
        running.run(lambda: bool(client.drafters.list()[0].last_error))
        said = str(client.drafters.list()[0].last_error)
    assert "features.layers: are 1, 3, but DRAFTWIRE_VLLM_FEATURE_LAYERS taps 1, 2, 4 only" in said
    running.run(lambda: len(request.output) > 5)
    assert request.output == text_after(request.prompt, len(request.output))


class TestWhatCannotBeTapped:
    @pytest.mark.parametrize(
        ("layers", "changes", "why"),
        [
            ("5", {}, "must be indices up to 4, the number of layers, got 5"),
            ("1", {"pipeline": 2}, "not supported with pipeline parallelism"),
            ("1", {"additional_config": object()}, "additional_config that is not a dictionary"),
        ],
    )
    def test_is_said_before_the_target_is_loaded(
        self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, layers: str, changes: dict[str, Any], why: str
    ) -> None:
        monkeypatch.setenv("DRAFTWIRE_VLLM_FEATURE_LAYERS", layers)
        config = tapped_config(checkpoint, layers=4, hidden_size=HIDDEN)
        config.parallel_config.pipeline_parallel_size = changes.get("pipeline", 1)
        config.additional_config = changes.get("additional_config", {})
        speculator = RemoteSpeculator(config, torch.device("cpu"), None)
        with pytest.raises(StartupError, match=rf"DRAFTWIRE_VLLM_FEATURE_LAYERS: .*{why}"):
            tapping(speculator, config)

    def test_a_worker_that_does_not_tap(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DRAFTWIRE_VLLM_FEATURE_LAYERS", "1")
        speculator = RemoteSpeculator(tapped_config(checkpoint, layers=4, hidden_size=6), torch.device("cpu"), None)
        with pytest.raises(StartupError, match=r"the worker draftwire_vllm\.worker\.Worker gives hidden states"):
            speculator.init_cudagraph_manager(None)

    def test_no_index(self, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DRAFTWIRE_VLLM_FEATURE_LAYERS", "1,-2")
        with pytest.raises(SettingsError, match="DRAFTWIRE_VLLM_FEATURE_LAYERS"):
            RemoteSpeculator(tapped_config(checkpoint, layers=4, hidden_size=6), torch.device("cpu"), None)
