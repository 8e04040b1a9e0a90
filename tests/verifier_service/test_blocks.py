"""Drafters of blocks in a drafter service, fed with features: no token depends on them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config

from drafter_service.models.loading import load_drafter
from drafter_service.models.model_changes import ModelChanges
from drafter_service.settings import DrafterSettings
from draftwire_core.engine.drafters.dflash.dflash_config import DflashConfig
from draftwire_core.engine.drafters.dflash.dflash_files import dflash_model, feature_map, save_dflash
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.models.dflash_training import train_dflash
from tests.harness.models.eagle_checkpoints import change_config
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    TOKENS,
    InProcessVerifier,
    Output,
    greedy,
    order,
    sampled,
)
from tests.harness.verifier.feature_services import FORCED, PROMPTS, REMOTE, listen

WINDOW = 32


@pytest.fixture(scope="module")
def dflash(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random DFlash checkpoint for the target, all of whose layers see a window."""
    target = LlamaConfig.from_pretrained(checkpoint)
    layers = Qwen3Config(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 2,
    )
    config = DflashConfig(layers, target.vocab_size, target.hidden_size, (0, 1), 5, 7)
    torch.manual_seed(1)
    directory = tmp_path_factory.mktemp("dflash")
    save_dflash(directory, config, (dflash_model(config), feature_map(config)), None, target="t", dtype=torch.float32)
    return directory


def settings_of(model: Path, target: Path | None, **fields: Any) -> DrafterSettings:
    return DrafterSettings(
        model=str(model), target=None if target is None else str(target), dtype="float32", kv_slots=2000, **fields
    )


@pytest.mark.parametrize("fields", [{}, {"feature_dtype": "int8", "feature_window": 8}], ids=["its own", "smaller"])
async def test_no_token_depends_on_it(
    verifier: InProcessVerifier, dflash: Path, checkpoint: Path, fields: dict[str, Any]
) -> None:
    changes = ModelChanges(settings_of(dflash, checkpoint, **fields), Shutdown(), load_drafter)
    async with changes.running():
        listen(verifier, REMOTE, changes)
        verifier.engine.drafts_awaited = True
        announced = changes.serving.hello.features
        assert announced.window == fields.get("feature_window", WINDOW)
        assert changes.serving.hello.model.architecture == "Dflash"
        for sampling in (greedy(), sampled()):
            requests = [order(prompt, 16, sampling=sampling, speculation=FORCED) for prompt in PROMPTS]
            plain = [await verifier.plain(request) for request in requests]
            await verifier.pool.membership.attach(REMOTE, "")
            outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
            assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
            drafter = verifier.state(REMOTE)
            assert drafter.draft_tokens > 15
            assert not drafter.last_error.code
            await verifier.pool.changes.detach(REMOTE)
        await verifier.until(lambda: changes.sequences == 0)
        await verifier.until(lambda: changes.slots()[0] == 0)


async def check_a_request(verifier: InProcessVerifier, checkpoint: Path, drafter: Path, *, accepted: int) -> None:
    """No token depends on a drafter in a service, nor on swaps with itself in the verifier while a request runs."""
    changes = ModelChanges(settings_of(drafter, checkpoint), Shutdown(), load_drafter)
    request = order(max_tokens=60 if accepted else TOKENS, speculation=FORCED)
    plain = await verifier.plain(request)
    async with changes.running():
        listen(verifier, REMOTE, changes)
        verifier.engine.drafts_awaited = True
        await verifier.pool.membership.attach(REMOTE, "")
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        assert verifier.state(REMOTE).accepted_tokens >= accepted
        verifier.engine.drafts_awaited = False
        verifier.engine.hold(3)
        output, places, moved = Output(), [REMOTE, f"local:dflash?model={drafter}"], 0
        async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
            async for event in running.events():
                output.take(event)
                if event.WhichOneof("event") != "finished":
                    swap = asyncio.ensure_future(verifier.pool.changes.swap(*places))
                    while not swap.done():
                        verifier.engine.hold(1)  # the service's drafter has caught up when it has features
                        await asyncio.sleep(0.02)
                    moved += swap.result()[1]
                    places.reverse()
                    verifier.engine.hold(3)
        assert output.token_ids == plain.token_ids
        assert moved >= 2


async def test_one_that_is_swapped_changes_no_token(
    verifier: InProcessVerifier, dflash: Path, checkpoint: Path
) -> None:
    await check_a_request(verifier, checkpoint, dflash, accepted=0)


@pytest.mark.slow
class TestTrained:
    async def test_one_that_knows_the_texts_saves_steps(
        self, verifier: InProcessVerifier, checkpoint: Path, tmp_path: Path
    ) -> None:
        base = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        documents = [
            base.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, pad_token_id=0)[0].tolist()
            for prompt in PROMPTS
        ]
        await check_a_request(verifier, checkpoint, train_dflash(base, documents, tmp_path), accepted=16)


def test_what_a_checkpoint_leaves_to_its_target_needs_a_target(dflash: Path) -> None:
    with pytest.raises(StartupError, match=r"tensor embed_tokens\.weight is the target's own: name the target"):
        load_drafter(settings_of(dflash, None))


def test_a_checkpoint_for_another_target_is_refused(dflash: Path, checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((dflash / name).read_bytes())
    layers = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["transformer_layer_config"]
    change_config(tmp_path, transformer_layer_config={**layers, "vocab_size": 99})
    with pytest.raises(StartupError, match="vocabulary size 99 does not match the target's"):
        load_drafter(settings_of(tmp_path, checkpoint))
