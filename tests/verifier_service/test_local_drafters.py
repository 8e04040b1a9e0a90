"""Drafters inside the verifier: members of the pool like others, and no token depends on them."""

import asyncio
import itertools
import json
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from structlog.testing import capture_logs
from torch import nn

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire_core.engine.drafters import early_exit
from draftwire_core.engine.drafters.lookup.ngram import NgramOptions
from draftwire_core.engine.drafters.lookup.shared_text_file import write_shared_texts
from draftwire_core.engine.loading.methods import METHODS, Method
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from draftwire_core.engine.model.weights_fingerprint import served_fingerprint
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.server import ServiceServer
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.in_process_verifier import PATIENCE, InProcessVerifier, Output, greedy, order, sampled
from tests.harness.verifier.running import Running, failure
from verifier_service.service import run_verifier
from verifier_service.settings import VerifierSettings

READY = DrafterState.DRAFTER_STATE_READY
NGRAM = "local:ngram?min=1"
EARLY_EXIT = "local:early_exit?layers=1"
LOOKAHEAD = "local:lookahead?window=4&ngram=3"
ADDRESSES = [NGRAM, "local:suffix?min=1", "local:suffix?min=1&shared=true", EARLY_EXIT, LOOKAHEAD]
REPEATED = [5, 9, 14, 23, 42, 7] * 6


@pytest.fixture
def exit_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a two-layer model is too expensive to draft with, so its cost is set to nearly nothing."""
    monkeypatch.setattr(early_exit, "weights_share", lambda target, layers: 0.01)


class NoTokenDependsOnThem:
    async def test_alone(self, verifier: InProcessVerifier, address: str, sampling: Any) -> None:
        requests = [order(REPEATED, sampling=sampling), order([3, 4], sampling=sampling)]
        plain = [await verifier.plain(request) for request in requests]
        await verifier.pool.membership.attach(address, "")
        outputs = await asyncio.gather(*(verifier.generate(request) for request in requests * 2))
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain] * 2
        drafter = verifier.state(address)
        assert drafter.draft_tokens > 0
        assert drafter.accepted_tokens == sum(output.finished.speculation.accepted_tokens for output in outputs)
        assert drafter.sequences == 0

    async def test_beside_a_draft_model(
        self, verifier: InProcessVerifier, twin: InProcessDrafter, address: str, sampling: Any
    ) -> None:
        request = order(REPEATED, sampling=sampling, speculation=SpeculationOptions(drafters=2))
        plain = await verifier.plain(request)
        await verifier.pool.membership.attach(address, "")
        await verifier.pool.membership.attach("twin:1", "")
        output = await verifier.generate(request)
        assert output.token_ids == plain.token_ids
        assert "twin:1" in output.sources


@pytest.mark.usefixtures("exit_is_cheap")
@pytest.mark.parametrize(
    ("address", "sampling"), [(each, (greedy(), sampled())[place % 2]) for place, each in enumerate(ADDRESSES)]
)
class TestNoTokenDependsOnThem(NoTokenDependsOnThem):
    """Each of them with one way to sample."""


@pytest.mark.slow
@pytest.mark.usefixtures("exit_is_cheap")
@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
@pytest.mark.parametrize("address", ADDRESSES)
class TestNoTokenDependsOnThemHoweverSampled(NoTokenDependsOnThem):
    """Each of them with both."""


@pytest.mark.parametrize("sampling", [greedy(), sampled()], ids=["greedy", "sampled"])
async def test_a_draft_model_in_the_verifier(verifier: InProcessVerifier, checkpoint: Path, sampling: Any) -> None:
    requests = [order(REPEATED, sampling=sampling), order([3, 4], sampling=sampling)]
    plain = [await verifier.plain(request) for request in requests]
    await verifier.pool.membership.attach(f"local:draft?model={checkpoint}", "twin")
    outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert verifier.state("twin").step_time.ToNanoseconds() > 0


async def check_a_pair(verifier: InProcessVerifier, checkpoint: Path, pair: tuple[str, str]) -> None:
    sampling = [greedy(), sampled()]
    requests = [
        order(REPEATED, 16, sampling=each, speculation=SpeculationOptions(drafter_names=["first", "second"]))
        for each in sampling
    ]
    for name, address in zip(("first", "second"), pair, strict=True):
        await verifier.pool.membership.attach(address + str(checkpoint) if address.endswith("=") else address, name)
    plain = [await verifier.plain(request) for request in requests]
    outputs = await asyncio.gather(*(verifier.generate(request) for request in requests))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert all(drafter.sequences == 0 for drafter in verifier.pool.describe())
    assert sum(verifier.state(name).draft_tokens for name in ("first", "second")) > 0


PAIRS = [*itertools.combinations((*ADDRESSES, "local:draft?model="), 2)]


@pytest.mark.parametrize("pair", PAIRS[::5], ids="+".join)
async def test_pairs(verifier: InProcessVerifier, checkpoint: Path, pair: tuple[str, str]) -> None:
    await check_a_pair(verifier, checkpoint, pair)


@pytest.mark.slow
class TestAllPairs:
    @pytest.mark.parametrize("pair", PAIRS, ids="+".join)
    async def test_pairs(self, verifier: InProcessVerifier, checkpoint: Path, pair: tuple[str, str]) -> None:
        await check_a_pair(verifier, checkpoint, pair)


async def test_a_model_whose_tokenizer_cannot_be_translated_is_refused(
    verifier: InProcessVerifier, tmp_path: Path
) -> None:
    address = f"local:draft?model={write_checkpoint(tmp_path, words=50)}"
    with pytest.raises(ServiceError, match="its tokens are not byte-level and do not fall back") as caught:
        await verifier.pool.membership.attach(address, "")
    assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"


async def test_what_was_said_before_is_drafted(verifier: InProcessVerifier) -> None:
    """A tiny random model repeats itself under greedy decoding, so lookup predicts its output."""
    await verifier.pool.membership.attach("local:ngram", "")
    plain = await verifier.plain(order(max_tokens=100))
    output = await verifier.generate(order(max_tokens=100))
    assert output.token_ids == plain.token_ids
    assert set(output.sources) == {"local:ngram", None}
    assert output.finished.speculation.steps == 100 - output.finished.speculation.accepted_tokens < 95


async def test_texts_of_an_earlier_start_are_drafted(verifier: InProcessVerifier, tmp_path: Path) -> None:
    plain = await verifier.plain(order([3, 4], 40))
    file = tmp_path / "served & kept.ids"
    address = f"local:suffix?shared=true&texts={quote(str(file))}"
    model = verifier.engine.model
    fingerprint = served_fingerprint(model.fingerprint, Tokenizer.load(str(verifier.checkpoint)).sha256)
    steps = []
    for texts in (None, [[3, 4, *plain.token_ids]]):
        if texts is not None:
            write_shared_texts(file, texts, fingerprint)
        await verifier.pool.membership.attach(address, "memory")
        output = await verifier.generate(order([3, 4], 40, speculation=SpeculationOptions(drafter_names=["memory"])))
        assert output.token_ids == plain.token_ids
        steps.append(output.finished.speculation.steps)
        await verifier.pool.changes.detach("memory")
    assert steps[1] < steps[0]
    write_shared_texts(file, [[1, 2]], "another target")
    with pytest.raises(ServiceError, match=r"option texts: .*kept\.ids has texts of a target with") as caught:
        await verifier.pool.membership.attach(address, "memory")
    assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"
    with pytest.raises(ServiceError, match="option texts of local:suffix needs shared=true"):
        await verifier.pool.membership.attach("local:suffix?texts=a", "")


class TestInThePool:
    async def test_it_is_described(self, verifier: InProcessVerifier) -> None:
        await verifier.pool.membership.attach("local:ngram?max=5&min=3", "", {"domain": "code"})
        (drafter,) = verifier.pool.describe()
        assert (drafter.name, drafter.address, drafter.state) == (*["local:ngram?min=3&max=5"] * 2, READY)
        assert dict(drafter.labels) == {"domain": "code"}
        assert not drafter.HasField("model")
        assert drafter.attached_at.seconds > 0

    async def test_its_times_are_told(self, verifier: InProcessVerifier) -> None:
        await verifier.pool.membership.attach(NGRAM, "lookup")
        await verifier.generate(order())
        assert verifier.state("lookup").step_time.ToNanoseconds() > 0
        assert not verifier.state("lookup").HasField("response_time"), "it is never waited for"
        status = verifier.verifier.status()
        assert status.times.draft.ToNanoseconds() > 0
        assert [each.drafter for each in status.planner.calibrations] == ["lookup"]

    async def test_again_is_the_same(self, verifier: InProcessVerifier) -> None:
        first = await verifier.pool.membership.attach("local:ngram?min=3&max=5", "")
        assert await verifier.pool.membership.attach("local:ngram?max=5&min=3", "") is first
        assert await failure(verifier.pool.membership.attach("local:ngram", first.name)) == (
            "ALREADY_EXISTS",
            "DRAFTER_EXISTS",
        )

    async def test_one_that_cannot_be_made_is_refused_and_says_why(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(options: NgramOptions, target: PackedModel, *_: Any) -> Any:
            raise ModelLoadError(f"nothing fits {target.vocab_size} tokens")

        monkeypatch.setitem(METHODS, "ngram", Method(NgramOptions, refuse))
        with pytest.raises(ServiceError, match=r"local:ngram\?min=1: nothing fits \d+ tokens") as caught:
            await verifier.pool.membership.attach(NGRAM, "")
        assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"
        assert verifier.pool.describe() == []
        verifier.pool.membership.add(NGRAM)
        await verifier.until(lambda: verifier.state(NGRAM).state == DrafterState.DRAFTER_STATE_INCOMPATIBLE)
        assert "nothing fits" in verifier.state(NGRAM).last_error.message
        assert (await verifier.generate(order())).finished.speculation.steps > 0

    @pytest.mark.parametrize("change", [{"num_hidden_layers": 10**6}, {"num_attention_heads": 0}, {"layer_types": 7}])
    async def test_a_damaged_directory_is_refused_and_nothing_else(
        self, verifier: InProcessVerifier, tmp_path: Path, change: dict[str, object]
    ) -> None:
        config = write_checkpoint(tmp_path) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
        with pytest.raises(ServiceError, match=f"model {tmp_path}: ") as caught:
            await verifier.pool.membership.attach(f"local:draft?model={tmp_path}", "")
        assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"
        assert verifier.pool.describe() == []
        assert (await verifier.generate(order())).token_ids

    @pytest.mark.parametrize("by", ["its release", "its caller"])
    async def test_loading_is_cancelled(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch, by: str
    ) -> None:
        begun, ended = threading.Event(), threading.Event()

        def load(options: NgramOptions, target: PackedModel, *_: Any) -> Any:
            begun.set()
            try:
                while True:  # as a load of many layers, each of which is a module
                    nn.Sequential(nn.Identity())
                    time.sleep(0.001)
            finally:
                ended.set()

        monkeypatch.setitem(METHODS, "ngram", Method(NgramOptions, load))
        with capture_logs() as logs:
            if by == "its release":
                drafter = verifier.pool.membership.add(NGRAM)
                await asyncio.to_thread(begun.wait, PATIENCE)
                verifier.pool.membership.dismiss(drafter)
            else:
                call = asyncio.create_task(verifier.pool.membership.attach(NGRAM, ""))
                await asyncio.to_thread(begun.wait, PATIENCE)
                call.cancel()
                await asyncio.wait([call])
            assert verifier.pool.describe() == []
            assert await asyncio.to_thread(ended.wait, PATIENCE)
            await verifier.until(lambda: bool(logs))
        said = [(line["event"], line["address"], line["log_level"]) for line in logs]
        assert said == [("loading cancelled", NGRAM, "info")]

    async def test_the_process_may_end_during_a_load_without_an_end(
        self, verifier: InProcessVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As of a model whose chat template renders for ever."""
        end = threading.Event()

        def load(options: NgramOptions, target: PackedModel, *_: Any) -> Any:
            end.wait()

        monkeypatch.setitem(METHODS, "ngram", Method(NgramOptions, load))
        drafter = verifier.pool.membership.add(NGRAM)
        await verifier.until(lambda: bool(verifier.shutdown.left_behind))
        (thread,) = verifier.shutdown.left_behind
        assert thread.daemon
        verifier.pool.membership.dismiss(drafter)
        end.set()
        await verifier.until(lambda: not verifier.shutdown.left_behind)

    async def test_a_hub_id_of_a_caller_is_refused_before_the_hub_is_asked(self, verifier: InProcessVerifier) -> None:
        for model, words in (
            ("lab/draft", "and models of the hub are not fetched for callers without --allow-hub-models"),
            ("hf://lab/draft", "and models of the hub are not fetched for callers without --allow-hub-models"),
            ("models/no-draft", "model models/no-draft: no such directory$"),
        ):
            with pytest.raises(ServiceError, match=words) as caught:
                await verifier.pool.membership.attach(f"local:draft?model={model}", "")
            assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"
        assert verifier.pool.describe() == []

    async def test_one_that_needs_another_target_is_refused(self, verifier: InProcessVerifier) -> None:
        with pytest.raises(ServiceError, match="layers: must be from 1 to 1, since the model has 2 layers") as caught:
            await verifier.pool.membership.attach("local:early_exit?layers=2", "")
        assert (caught.value.code.name, caught.value.reason_name) == ("FAILED_PRECONDITION", "UNSUPPORTED_DRAFTER")

    async def test_at_start(self, verifier: InProcessVerifier) -> None:
        verifier.pool.membership.add("local:ngram")
        await verifier.until(lambda: verifier.state("local:ngram").state == READY)

    async def test_a_request_that_runs_gets_it_and_loses_it(self, verifier: InProcessVerifier) -> None:
        async with Running(verifier):
            await verifier.pool.membership.attach(NGRAM, "")
            assert verifier.state(NGRAM).sequences == 1
            verifier.engine.hold(3)
            await verifier.until(lambda: verifier.engine._permits == 0)
            assert (await verifier.pool.changes.detach(NGRAM)).sequences == 0
        assert verifier.pool.describe() == []

    async def test_by_name(self, verifier: InProcessVerifier, listening: Any) -> None:
        service = listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        await verifier.pool.membership.attach(NGRAM, "")
        async with Running(verifier, speculation=SpeculationOptions(drafter=NGRAM)):
            await verifier.until(lambda: verifier.state(NGRAM).sequences == 1)
        assert not service.opened
        with pytest.raises(ServiceError) as caught:
            await verifier.generate(order(speculation=SpeculationOptions(drafter="local:ngram")))
        assert caught.value.reason_name == "DRAFTER_NOT_FOUND"

    async def test_swaps_with_a_service(self, verifier: InProcessVerifier, twin: InProcessDrafter) -> None:
        request = order(max_tokens=60, sampling=sampled())
        plain = await verifier.plain(request)
        await verifier.pool.membership.attach("twin:1", "")
        verifier.engine.hold(3)
        output, moved = Output(), 0
        at, other = "twin:1", NGRAM
        async with asyncio.timeout(PATIENCE), verifier.running(request) as running:
            async for event in running.events():
                output.take(event)
                if event.WhichOneof("event") != "finished":
                    moved += (await verifier.pool.changes.swap(at, other))[1]
                    at, other = other, at
                    verifier.engine.hold(3)
        assert output.token_ids == plain.token_ids
        assert moved >= 3
        assert [drafter.name for drafter in verifier.pool.describe()] == [at]

    async def test_a_roll_out(self, verifier: InProcessVerifier, listening: Any) -> None:
        listening("a:1")
        await verifier.pool.membership.attach("a:1", "")
        async with Running(verifier):
            rollout = await verifier.pool.changes.start_rollout("a:1", NGRAM, 1.0)
            assert (rollout.new.name, rollout.new.sequences) == (NGRAM, 1)
            await verifier.pool.changes.finish_rollout(NGRAM, promote=True)
        assert [drafter.name for drafter in verifier.pool.describe()] == [NGRAM]

    async def test_a_roll_out_that_is_withdrawn_while_the_old_one_is_lost(
        self, verifier: InProcessVerifier, listening: Any
    ) -> None:
        """What cannot move back gets another drafter."""
        old = listening("old:1")
        await verifier.pool.membership.attach("old:1", "")
        async with Running(verifier):
            await verifier.until(lambda: old.open)
            await verifier.pool.changes.start_rollout("old:1", NGRAM, 1.0)
            assert verifier.state(NGRAM).sequences == 1
            listening("third:1")
            await verifier.pool.membership.attach("third:1", "")
            await verifier.network.kill("old:1")
            await verifier.until(lambda: verifier.state("old:1").state != READY)
            await verifier.pool.changes.finish_rollout(NGRAM, False)
            assert verifier.state("third:1").sequences == 1


class TestAddresses:
    @pytest.mark.parametrize(
        ("address", "reason", "words"),
        [
            ("local:", "UNSUPPORTED_DRAFTER", "local:ngram"),
            ("local:magic?min=2", "UNSUPPORTED_DRAFTER", "local:magic"),
            ("local:ngram?least=2", "INVALID_FIELD", "option 'least' of local:ngram is unknown"),
            ("local:ngram?min", "INVALID_FIELD", "option min of local:ngram must be a whole number"),
            ("local:ngram?min=x", "INVALID_FIELD", "option min of local:ngram must be a whole number"),
            ("local:ngram?min=-1", "INVALID_FIELD", "option min of local:ngram must be a whole number"),
            ("local:ngram?min=0", "INVALID_FIELD", "option min of local:ngram must be from 1"),
            ("local:ngram?min=2&min=3", "INVALID_FIELD", "option min of local:ngram is given twice"),
            ("local:ngram?min=5&max=4", "INVALID_FIELD", "option max of local:ngram must be from min (5)"),
            ("local:ngram?max=9999999999999999999", "INVALID_FIELD", "option max"),
            ("local:early_exit", "INVALID_FIELD", "option layers of local:early_exit must be given"),
            ("local:early_exit?layers=0", "INVALID_FIELD", "option layers of local:early_exit must be given"),
            ("local:lookahead?window=0", "INVALID_FIELD", "option window of local:lookahead must be from 1 to 64"),
            ("local:lookahead?ngram=1", "INVALID_FIELD", "option ngram of local:lookahead must be from 2 to 16"),
        ],
    )
    async def test_bad_ones(self, verifier: InProcessVerifier, address: str, reason: str, words: str) -> None:
        with pytest.raises(ServiceError) as caught:
            await verifier.pool.membership.attach(address, "")
        assert (caught.value.code.name, caught.value.reason_name) == ("INVALID_ARGUMENT", reason)
        (violation,) = caught.value.field_violations
        assert violation.field == "address"
        assert words in violation.description
        assert verifier.pool.describe() == []

    @pytest.mark.parametrize("address", ["local:ngarm", "local:ngram?least=2", "draft"])
    async def test_bad_ones_of_a_flag_are_told_before_the_model_is_loaded(self, tmp_path: Path, address: str) -> None:
        settings = VerifierSettings(model=str(tmp_path / "none"), drafter=(address,), device="cpu")
        with pytest.raises(StartupError, match=r"--drafter: .*(ngram|HOST:PORT)"):
            await run_verifier(settings, ServiceServer(settings), Shutdown())

    async def test_a_bad_one_to_swap_to(self, verifier: InProcessVerifier) -> None:
        await verifier.pool.membership.attach("local:ngram", "")
        with pytest.raises(ServiceError) as caught:
            await verifier.pool.changes.swap("local:ngram", "local:ngram?max=0")
        assert [violation.field for violation in caught.value.field_violations] == ["new_name"]
        assert verifier.state("local:ngram").state == READY

    async def test_none_announces_itself(self, verifier: InProcessVerifier) -> None:
        with pytest.raises(ServiceError) as caught:
            verifier.pool.membership.register("local:ngram", "", leaving=False)
        assert caught.value.reason_name == "UNSUPPORTED_DRAFTER"
