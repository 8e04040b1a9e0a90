"""A real EAGLE-3 drafter service that drafts from the hidden states of a stand-in for vLLM's runner V2, with a real
Llama as its target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from draftwire import Client
from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from draftwire_core.engine.engine.step_result import SequenceFeatures
from draftwire_core.engine.engine.verification_engine import generate_all
from draftwire_core.engine.model.features.feature_codec import decode
from draftwire_core.engine.model.features.feature_map import FeatureMap
from draftwire_core.pool.standing.pause_policy import PausePolicy
from tests.harness.engine.engines import GREEDY, engine_of, packed, specs_of
from tests.harness.models.eagle_training import train_eagle
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.services.services import Services
from tests.harness.stand_ins.runner_v2 import PlainKernels, PlainStates, RequestV2, RunnerV2
from tests.harness.stand_ins.tapped_config import tapped_config, tapping

pytestmark = pytest.mark.slow

PROMPTS = [[5 + (length * step) % 90 for step in range(length)] for length in (9, 40)]
LENGTH = 60


class Target:
    """A Llama as the runner sees it."""

    def __init__(self, model: LlamaForCausalLM, layers: tuple[int, ...]) -> None:
        self._model = model
        self._layers = layers

    @torch.inference_mode()
    def logits(self, request: RequestV2, drafts: list[int]) -> torch.Tensor:
        found: torch.Tensor = self._model(torch.tensor([[*request.tokens, *drafts]])).logits[0]
        return found[len(request.tokens) - 1 :]

    @torch.inference_mode()
    def hidden(self, request: RequestV2, drafts: list[int], positions: range) -> list[torch.Tensor]:
        states = self._model(torch.tensor([[*request.tokens, *drafts]]), output_hidden_states=True).hidden_states
        return [states[layer][0, positions.start : positions.stop] for layer in self._layers]


def _features(model: LlamaForCausalLM, tokens: list[int], layers: tuple[int, ...], mapping: FeatureMap) -> torch.Tensor:
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        return mapping(torch.cat([states[layer][0] for layer in layers], dim=-1))


def test_it_drafts_from_the_runners_states(tmp_path: Path, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_checkpoint(tmp_path / "target")
    model = LlamaForCausalLM.from_pretrained(place, dtype=torch.float32)
    specs = specs_of(PROMPTS, LENGTH, GREEDY)
    texts = generate_all(engine_of(packed(LlamaForCausalLM.from_pretrained(place, dtype=torch.float32), 1000)), specs)
    documents = [[*prompt, *text] for prompt, text in zip(PROMPTS, texts, strict=True)]
    eagle = train_eagle(LlamaForCausalLM.from_pretrained(place, dtype=torch.float32), documents, tmp_path / "eagle")
    drafter = services.drafter(str(eagle), "--target", str(place), "--dtype", "float32")

    layers = tuple(sorted(set(json.loads((eagle / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"])))
    monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", drafter.address)
    monkeypatch.setenv("DRAFTWIRE_VLLM_FEATURE_LAYERS", ",".join(map(str, layers)))
    config = tapped_config(place, layers=model.config.num_hidden_layers, hidden_size=model.config.hidden_size)
    config.model_config.get_vocab_size = lambda: model.config.vocab_size
    states = PlainStates(16, 4096, 3)
    speculator = RemoteSpeculator(config, torch.device("cpu"), states)
    tapping(speculator, config)
    speculator.init_cudagraph_manager(None)
    target = Target(model, layers)
    assert speculator._pool is not None
    made = speculator._pool.features
    assert made is not None
    sent: list[SequenceFeatures] = []
    take = made.take

    def noted(resting: set[str]) -> list[SequenceFeatures]:
        taken = take(resting)
        sent.extend(taken)
        return taken

    monkeypatch.setattr(made, "take", noted)
    monkeypatch.setattr(PausePolicy, "paused", False)  # of a step so short, messages are a large part
    runner = RunnerV2(speculator, states, PlainKernels(), target.logits, hidden=target.hidden, chunk=16)
    try:
        with Client(speculator.address) as client:
            runner.run(lambda: client.drafters.list()[0].state == "ready")
        accepted = 0
        for round_ in range(3):
            requests = [runner.add(f"{round_}-{row}", prompt, LENGTH) for row, prompt in enumerate(PROMPTS)]
            runner.run(lambda: not runner.requests)
            assert [each.output[:LENGTH] for each in requests] == texts
            accepted += sum(each.accepted for each in requests)
        assert accepted > 30
        [(kind, mapping)] = made._maps.items()
        expected = [_features(model, document, kind.layers, mapping) for document in documents]
        assert sum(len(decode(each.values, mapping.shape.width, "float32")) for each in sent) > 3 * LENGTH
        for each in sent:
            found = decode(each.values, mapping.shape.width, "float32")
            places = slice(each.first_position, each.first_position + len(found))
            # A request that ends a step late has tokens beyond its text.
            ends = [one[places] for one in expected]
            found = found[: max(map(len, ends))]
            assert any(len(end) == len(found) and torch.allclose(found, end, atol=1e-4) for end in ends), (
                f"features at {places}"
            )
        assert not speculator.faults
    finally:
        speculator.shutdown()
