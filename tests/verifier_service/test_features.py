"""EAGLE-3 in a drafter service, fed with features: no token depends on it, and it drafts as well as in the verifier."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from drafter_service.models.loading import load_drafter
from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from drafter_service.settings import DrafterSettings
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.features_pb2 import FeatureMap
from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from draftwire_core.engine.drafters.features.reading_drafter import ReadingDraft
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.pool.changes import swap as drafter_swap
from draftwire_core.pool.drafter.features import check_features
from draftwire_core.pool.standing import standings
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import change_tensors
from tests.harness.models.eagle_training import train_eagle
from tests.harness.models.mtp_checkpoints import write_with_mtp
from tests.harness.models.tiny_checkpoint import write_tokenizer
from tests.harness.services.in_process_verifier import (
    PATIENCE,
    InProcessVerifier,
    Output,
    greedy,
    order,
    sampled,
)
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter, hello
from tests.harness.verifier.feature_services import FORCED, PROMPTS, REMOTE, listen
from tests.harness.verifier.running import Running
from verifier_service import target_features


@pytest.fixture(scope="module")
def eagle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE-3 drafter trained on the target's greedy outputs for the prompts; the embedding is the target's."""
    base = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    documents = [
        base.generate(torch.tensor([prompt]), max_new_tokens=60, do_sample=False, pad_token_id=0)[0].tolist()
        for prompt in PROMPTS
    ]
    return change_tensors(train_eagle(base, documents, tmp_path_factory.mktemp("eagle")), embed_tokens__weight=None)


def settings_of(eagle: Path, target: Path, **fields: Any) -> DrafterSettings:
    return DrafterSettings(model=str(eagle), target=str(target), dtype="float32", kv_slots=2000, **fields)


@pytest.fixture
async def remote(
    request: pytest.FixtureRequest, eagle: Path, checkpoint: Path, verifier: InProcessVerifier
) -> AsyncIterator[ModelChanges]:
    """A drafter service with EAGLE-3; a parameter is the type of its features."""
    shutdown = Shutdown()
    settings = settings_of(eagle, checkpoint, feature_dtype=getattr(request, "param", "auto"))
    changes = ModelChanges(settings, shutdown, load_drafter)
    async with changes.running():
        listen(verifier, REMOTE, changes)
        verifier.engine.drafts_awaited = True
        yield changes
        await verifier.until(lambda: changes.sequences == 0)
        await verifier.until(lambda: changes.slots()[0] == 0)
    assert shutdown.failure is None


async def check_several_requests(verifier: InProcessVerifier, sampling: Any, max_tokens: int) -> None:
    """No token of three requests depends on the remote drafter, which is right about greedy ones."""
    requests = [order(prompt, max_tokens, sampling=sampling, speculation=FORCED) for prompt in PROMPTS]
    plain = [await verifier.plain(request) for request in requests]
    await verifier.pool.membership.attach(REMOTE, "")
    outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    drafter = verifier.state(REMOTE)
    assert drafter.draft_tokens > 0.8 * max_tokens
    assert not drafter.last_error.code
    if sampling.temperature == 0:
        assert drafter.accepted_tokens > max_tokens / 2


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
class TestNoTokenOfLongRequestsDependsOnIt:
    @pytest.mark.parametrize("remote", ["auto", "bfloat16", "int8"], indirect=True)
    async def test_several_requests_at_once(
        self, verifier: InProcessVerifier, remote: ModelChanges, sampling: Any
    ) -> None:
        await check_several_requests(verifier, sampling, 60)


class TestNoTokenDependsOnIt:
    @pytest.mark.parametrize(
        ("sampling", "remote"),
        [(greedy(), "auto"), (sampled(), "int8")],
        ids=["greedy", "sampled"],
        indirect=["remote"],
    )
    async def test_several_requests_at_once(
        self, verifier: InProcessVerifier, remote: ModelChanges, sampling: Any
    ) -> None:
        await check_several_requests(verifier, sampling, 20)

    @pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
    async def test_swapped_while_a_request_runs(
        self, verifier: InProcessVerifier, remote: ModelChanges, eagle: Path, sampling: Any
    ) -> None:
        request = order(max_tokens=60, sampling=sampling, speculation=FORCED)
        plain = await verifier.plain(request)
        verifier.engine.drafts_awaited = False
        await verifier.pool.membership.attach(REMOTE, "")
        verifier.engine.hold(3)
        output, moved = Output(), 0
        places = [REMOTE, f"local:eagle3?model={eagle}", "local:ngram?min=1"]
        async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
            async for event in running.events():
                output.take(event)
                if event.WhichOneof("event") != "finished":
                    at, other = places[0], places[1]
                    swap = asyncio.ensure_future(verifier.pool.changes.swap(at, other))
                    while not swap.done():
                        verifier.engine.hold(1)  # the service's drafter has caught up when it has features
                        await asyncio.sleep(0.02)
                    moved += swap.result()[1]
                    places = [*places[1:], at]
                    verifier.engine.hold(3)
        assert output.token_ids == plain.token_ids
        assert moved >= 3


async def test_a_cached_prompt_is_read_in_full(verifier: InProcessVerifier, remote: ModelChanges) -> None:
    await verifier.pool.membership.attach(REMOTE, "")
    request = order(PROMPTS[2], 48, speculation=FORCED)  # or it may end before its prompt is read
    first = await verifier.generate(request)
    read: list[int] = []
    take = ReadingDraft.take_ready

    def noted(draft: ReadingDraft, count: int) -> Any:
        taken = take(draft, count)
        read.extend(taken.tolist())
        return taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadingDraft, "take_ready", noted)
        again = await verifier.generate(request)
    assert again.token_ids == first.token_ids
    assert again.finished.usage.cached_tokens > 140
    assert read[: len(PROMPTS[2])] == list(range(1, len(PROMPTS[2]) + 1))


async def test_drafters_of_one_kind_share_a_tap_and_its_weights(
    verifier: InProcessVerifier, remote: ModelChanges
) -> None:
    listen(verifier, "eagle:2", remote)
    for address in (REMOTE, "eagle:2"):
        await verifier.pool.membership.attach(address, "")
    assert verifier.network.fetched == [REMOTE]
    assert len(verifier.engine.features._taps) == 1
    request = order(
        max_tokens=12, speculation=SpeculationOptions(drafters=2, planning=DraftPlanning.DRAFT_PLANNING_ALWAYS)
    )
    assert (await verifier.generate(request)).token_ids == (await verifier.plain(request)).token_ids
    for address in (REMOTE, "eagle:2"):
        assert verifier.state(address).step_time.ToNanoseconds() > 0, "it has drafted"
        await verifier.pool.changes.detach(address)
    await verifier.until(lambda: not verifier.engine.features)


async def test_a_drafter_that_is_lost_and_returns(verifier: InProcessVerifier, remote: ModelChanges) -> None:
    request = order(max_tokens=30, speculation=FORCED)
    plain = await verifier.plain(request)
    await verifier.pool.membership.attach(REMOTE, "")
    verifier.engine.drafts_awaited = False
    verifier.engine.hold(5)
    output = Output()
    async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
        async for event in running.events():
            output.take(event)
            if len(output.token_ids) in range(5, 20):
                await verifier.network.kill(REMOTE)
                verifier.network.listen(REMOTE, DrafterServicer(remote, 4).converse)
                await verifier.until(lambda: verifier.state(REMOTE).sequences == 1)
            verifier.engine.hold(5)
    assert output.token_ids == plain.token_ids
    assert verifier.network.fetched == [REMOTE], "its weights are still here"


async def test_a_verifier_without_features_is_refused(services: Services, checkpoint: Path, eagle: Path) -> None:
    changes = ModelChanges(settings_of(eagle, checkpoint), Shutdown(), load_drafter)
    async with changes.running(), services.in_process_verifier(checkpoint, fetch_weights=None) as verifier:
        listen(verifier, REMOTE, changes)
        with pytest.raises(ServiceError, match="lacks the capability features") as caught:
            await verifier.pool.membership.attach(REMOTE, "")
        assert caught.value.reason_name == "PROTOCOL_MISMATCH"


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"layers": []}, "features.layers: must be 1 to 16 indices up to 2"),
            ({"layers": [1, 2, 1]}, "features.layers: must name each layer once"),
            ({"layers": [3]}, "features.layers: must be"),
            ({"hidden_size": 64}, "features.hidden_size: is 64, but the target's is 32"),
            ({"width": 0}, "features.width: must be 1 to 128, got 0"),
            ({"width": 129}, "features.width: must be"),
            ({"unmapped": True}, "features.width: must be 32 without a map, got 8"),
            ({"dtype": "int4"}, "features.dtype: must be one of bfloat16"),
            ({"weights_dtype": "int8"}, "features.weights_dtype: must be one of"),
            ({"norm_states": True, "norm_each_state": True}, "features.norm_each_state: excludes norm_states"),
            ({"norm_epsilon": float("nan")}, "features.norm_epsilon: must be a finite number"),
            ({"norm_epsilon": 3e38}, "features.norm_epsilon: must be a finite number"),
            ({"weights_sha256": "0" * 63}, "features.weights_sha256: must be a SHA-256"),
            (
                {"target_architectures": ["GptOss"]},
                "features.target_architectures: are GptOss, but the target is a",
            ),
        ],
    )
    async def test_features_that_the_target_does_not_have(
        self, verifier: InProcessVerifier, fields: dict[str, Any], words: str
    ) -> None:
        good = {"layers": [1], "hidden_size": 32, "width": 8, "dtype": "int8", "weights_dtype": "float32"}
        good["weights_sha256"] = "0" * 64
        check_features(FeatureMap(**good), verifier.engine.model)
        drafter = ScriptedDrafter(greeting=hello(capabilities=["features"], features=FeatureMap(**{**good, **fields})))
        verifier.network.listen("bad:1", drafter.converse)
        with pytest.raises(ServiceError, match=words) as caught:
            await verifier.pool.membership.attach("bad:1", "")
        assert caught.value.reason_name == "PROTOCOL_MISMATCH"
        assert not verifier.engine.features

    async def test_weights_that_are_no_numbers(self, verifier: InProcessVerifier) -> None:
        weights = torch.full((8, 32), torch.nan).numpy().tobytes()
        features = FeatureMap(
            layers=[1],
            hidden_size=32,
            width=8,
            dtype="int8",
            weights_dtype="float32",
            weights_sha256=hashlib.sha256(weights).hexdigest(),
        )
        drafter = ScriptedDrafter(greeting=hello(capabilities=["features"], features=features))
        verifier.network.listen("bad:1", drafter.converse)
        verifier.network.weights["bad:1"] = weights
        with pytest.raises(ServiceError, match=r"features\.weights_sha256: weights must be finite numbers"):
            await verifier.pool.membership.attach("bad:1", "")
        assert not verifier.engine.features

    async def test_features_for_which_there_is_no_memory(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> Any:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes.")

        monkeypatch.setattr(target_features, "SlotStates", refuse)
        weights = torch.zeros(8, 32).numpy().tobytes()
        features = FeatureMap(
            layers=[1],
            hidden_size=32,
            width=8,
            dtype="int8",
            weights_dtype="float32",
            weights_sha256=hashlib.sha256(weights).hexdigest(),
        )
        drafter = ScriptedDrafter(greeting=hello(capabilities=["features"], features=features))
        verifier.network.listen("large:1", drafter.converse)
        verifier.network.weights["large:1"] = weights
        with pytest.raises(ServiceError, match="not enough memory for the features") as caught:
            await verifier.pool.membership.attach("large:1", "")
        assert caught.value.reason_name == "AT_CAPACITY"

    async def test_a_checkpoint_whose_target_is_not_named(self, eagle: Path) -> None:
        with pytest.raises(StartupError, match=r"embed_tokens\.weight is the target's own: name the target with --tar"):
            load_drafter(DrafterSettings(model=str(eagle), dtype="float32", kv_slots=100))

    async def test_weights_of_a_drafter_that_guesses_blocks(self, checkpoint: Path, tmp_path: Path) -> None:
        settings = settings_of(write_dflash(tmp_path), checkpoint).model_copy(update={"weights": "q8_0"})
        with pytest.raises(StartupError, match=r"--weights: q8_0 does not apply to .*, which guesses blocks"):
            load_drafter(settings)

    async def test_settings_of_gpus_where_auto_is_one(self, eagle: Path, checkpoint: Path) -> None:
        settings = DrafterSettings(model=str(eagle), target=str(checkpoint), kv_slots=100, weights="int4").on("cuda")
        with pytest.raises(StartupError, match=r"^--weights: int4 requires --device cuda, got cpu, where"):
            load_drafter(settings)

    async def test_the_targets_tokenizer_may_be_elsewhere(self, eagle: Path, checkpoint: Path, tmp_path: Path) -> None:
        write_tokenizer(tmp_path, 100)
        settings = settings_of(eagle, checkpoint, target_tokenizer=str(tmp_path))
        assert load_drafter(settings).info.tokenizer_sha256 == Tokenizer.load(str(tmp_path)).sha256

    @pytest.mark.parametrize("fields", [{"layers": 1}, {"tensor_parallel": 2}])
    async def test_settings_of_draft_models(self, eagle: Path, checkpoint: Path, fields: dict[str, Any]) -> None:
        name = next(iter(fields)).replace("_", "-")
        with pytest.raises(StartupError, match=f"--{name}: .* does not apply to .* which drafts from features"):
            load_drafter(DrafterSettings(**{"model": str(eagle), "target": str(checkpoint), "kv_slots": 100, **fields}))


@pytest.mark.parametrize("weights", ["checkpoint", "q8_0"])
def test_a_service_quantises_the_layer(eagle: Path, checkpoint: Path, weights: str) -> None:
    fields = {"model": str(eagle), "target": str(checkpoint), "dtype": "bfloat16", "kv_slots": 100, "weights": weights}
    loaded = load_drafter(DrafterSettings(**fields))
    assert loaded.info.dtype == ("bfloat16" if weights == "checkpoint" else weights)


async def test_a_model_change_ends_its_features(
    verifier: InProcessVerifier, remote: ModelChanges, checkpoint: Path, eagle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a draft model, which reads none, and back."""
    monkeypatch.setattr(standings, "REPLACEMENT_SECONDS", 0.0)
    await verifier.pool.membership.attach(REMOTE, "")
    request = order(max_tokens=8, speculation=FORCED, prefix_cache=False)
    plain = await verifier.plain(request)
    for model, architecture, features in ((checkpoint, "LlamaForCausalLM", False), (eagle, "Eagle3", True)):
        await remote.load(str(model), "")
        await verifier.until(lambda name=architecture: verifier.state(REMOTE).model.architecture == name)
        await verifier.until(lambda: verifier.state(REMOTE).state == DrafterState.DRAFTER_STATE_READY)
        await verifier.until(lambda features=features: bool(verifier.engine.features) == features)
        assert (await verifier.generate(request)).token_ids == plain.token_ids


async def test_a_multi_token_prediction_layer_in_a_service(services: Services, tmp_path: Path) -> None:
    checkpoint = write_with_mtp("qwen", tmp_path)
    write_tokenizer(checkpoint, 100)
    settings = DrafterSettings(model=str(checkpoint), mtp=True, dtype="float32", kv_slots=2000)
    changes = ModelChanges(settings, Shutdown(), load_drafter)
    async with changes.running(), services.in_process_verifier(checkpoint) as verifier:
        listen(verifier, REMOTE, changes)
        for sampling in (greedy(), sampled()):
            requests = [order(prompt, 12, sampling=sampling, speculation=FORCED) for prompt in PROMPTS]
            plain = [await verifier.plain(request) for request in requests]
            await verifier.pool.membership.attach(REMOTE, "")
            verifier.engine.drafts_awaited = True
            outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
            assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
            assert verifier.state(REMOTE).draft_tokens > 10
            verifier.engine.drafts_awaited = False
            await verifier.pool.changes.detach(REMOTE)


class TestAPause:
    @pytest.fixture(autouse=True)
    def tireless(self) -> None:
        """Overrides the fixture that disables pausing."""

    async def test_it_is_tried_again_though_it_gets_no_features_meanwhile(
        self, verifier: InProcessVerifier, remote: ModelChanges
    ) -> None:
        verifier.engine.drafts_awaited = False
        request = order(PROMPTS[0], 60, sampling=greedy())
        plain = await verifier.plain(request)
        policy = (await verifier.pool.membership.attach(REMOTE, "")).pause_policy
        policy._account.open, policy._account.balance = False, 0.0
        assert (await verifier.generate(request)).token_ids == plain.token_ids
        assert not policy.paused
        assert verifier.state(REMOTE).draft_tokens > 0

    async def test_a_swap_to_a_paused_one_ends(
        self, verifier: InProcessVerifier, remote: ModelChanges, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(drafter_swap, "_MOVE_SECONDS", 1.0)
        verifier.engine.drafts_awaited = False
        policy = (await verifier.pool.membership.attach(REMOTE, "")).pause_policy
        policy._account.open, policy._account.balance = False, -100.0
        first = ScriptedDrafter()
        verifier.network.listen("first:1", first.converse)
        await verifier.pool.membership.attach("first:1", "")
        async with Running(verifier, max_tokens=60, speculation=SpeculationOptions(drafter="first:1")):
            await verifier.until(lambda: first.open)
            await verifier.pool.changes.swap("first:1", REMOTE)
            assert [(each.name, each.sequences) for each in verifier.pool.describe()] == [(REMOTE, 1)]


class TestASlowMap:
    @pytest.fixture(autouse=True)
    def tireless(self) -> None:
        """Overrides the fixture that disables pausing."""

    @pytest.mark.parametrize("says_opened", [True, False])
    async def test_it_is_applied_until_its_drafter_is_paused(
        self, verifier: InProcessVerifier, says_opened: bool
    ) -> None:
        """Even if the drafter never says that it has caught up, and when it returns under another name."""
        weights = torch.rand(8, 32).numpy().tobytes()
        features = FeatureMap(
            layers=[1],
            hidden_size=32,
            width=8,
            dtype="int8",
            weights_dtype="float32",
            weights_sha256=hashlib.sha256(weights).hexdigest(),
        )
        greeting = hello(capabilities=["features"], features=features)
        slow = ScriptedDrafter(greeting=greeting, says_opened=says_opened)
        verifier.network.listen("slow:1", slow.converse)
        verifier.network.weights["slow:1"] = weights
        plain = await verifier.plain(order(max_tokens=40))
        mapped = 0

        def mapping(states: torch.Tensor) -> torch.Tensor:
            nonlocal mapped
            mapped += 1
            time.sleep(0.03)
            return torch.zeros(len(states), 8)

        for name in ("first", "again"):
            await verifier.pool.membership.attach("slow:1", name)
            (tap,) = verifier.engine.features._taps.values()
            tap.mapping.forward = mapping
            assert (await verifier.generate(order(max_tokens=40))).token_ids == plain.token_ids
            assert verifier.state(name).resting
            await verifier.pool.changes.detach(name)
        assert 1 <= mapped <= 20
