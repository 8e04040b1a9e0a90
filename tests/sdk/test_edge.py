"""Clients that draft themselves, against a verifier without a model that records their drafts."""

import asyncio
import logging
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from draftwire import (
    AtCapacityError,
    NumericsMismatchError,
    RequestCancelledError,
    RetryPolicy,
    Speculation,
    UnavailableError,
)
from draftwire._messages import off_loop
from draftwire.edge import AsyncEdgeClient, EdgeClient, LocalDrafter, ModelLoadError
from draftwire.v1.proposal_pb2 import Proposal
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.verdict_pb2 import Verdict
from draftwire.v1.verifier_service_pb2 import VerifyOpened, VerifyResponse
from draftwire_core.edge.draft_thread import DraftThread
from draftwire_core.edge.edge_request import EdgeRequest, EncodedStart
from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, Growth, OutOfSyncError
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.tree.proposal import Proposal as TreeProposal
from tests.harness.engine.engines import GREEDY
from tests.harness.models.tiny_checkpoint import write_checkpoint
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status
from tests.harness.waiting import PATIENCE, eventually, sometimes
from tests.sdk.conftest import QUICK, in_order


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("draft"))


@pytest.fixture(scope="module")
def loaded(checkpoint: Path) -> Iterator[LocalDrafter]:
    made = LocalDrafter(str(checkpoint), dtype="float32", threads=1, kv_slots=4096)
    yield made
    made.close()


@pytest.fixture
def drafter(loaded: LocalDrafter) -> Iterator[LocalDrafter]:
    """A drafter without open sequences before and after the test."""
    yield loaded
    # The thread that reads a call learns of its end a moment after the cancellation.
    eventually(lambda: loaded.thread.open_sequences() == 0, "nothing is drafted for")


@pytest.fixture
def client(verifier: FakeVerifier, drafter: LocalDrafter) -> Iterator[EdgeClient]:
    verifier.waits_for_proposals = True
    with EdgeClient(verifier.address, model=drafter, timeout=PATIENCE, retry=QUICK) as made:
        yield made


def check(proposals: list[Proposal], length: int) -> None:
    """Checks that the nodes are numbered without a gap, below committed tokens."""
    ids = [proposal.first_node_id + i for proposal in proposals for i in range(len(proposal.token_ids))]
    assert ids == list(range(1, len(ids) + 1)) != []
    lengths = [proposal.committed_length for proposal in proposals]
    assert lengths == sorted(lengths)
    assert lengths[0] >= length
    for proposal in proposals:
        assert len(proposal.parent_ids) == len(proposal.log_probs) == len(proposal.token_ids) > 0
        assert all(0 <= token < 200 for token in proposal.token_ids)


def test_generate(client: EdgeClient, verifier: FakeVerifier, drafter: LocalDrafter) -> None:
    r = client.generate(PROMPT, max_tokens=20, seed=5)
    assert r.token_ids == expected_ids(5, 20)
    assert r.resumes == 0
    (start,) = verifier.starts
    assert start.tokenizer_sha256 == drafter.tokenizer_sha256
    assert start.request.text == PROMPT
    check(verifier.proposals, len(PROMPT_IDS))


def test_it_follows_the_verdicts(client: EdgeClient, verifier: FakeVerifier) -> None:
    client.generate(PROMPT, max_tokens=20, seed=5)
    check(verifier.proposals, len(PROMPT_IDS))
    assert len({proposal.committed_length for proposal in verifier.proposals}) > 1


def test_several_at_once(client: EdgeClient, verifier: FakeVerifier) -> None:
    results = client.generate_batch(["a", "b", "c", "d"], max_tokens=10, seed=3)
    assert [r.token_ids for r in results] == [expected_ids(3, 10, [ord(p)]) for p in "abcd"]
    assert len(verifier.starts) == 4


def test_speculation_can_be_turned_off(client: EdgeClient, verifier: FakeVerifier) -> None:
    for speculation in (Speculation(enabled=False), Speculation(max_draft_tokens=0)):
        assert client.generate(PROMPT, max_tokens=4, seed=5, speculation=speculation).token_ids == expected_ids(5, 4)
    assert verifier.starts == []


def test_int8_weights(verifier: FakeVerifier, checkpoint: Path) -> None:
    verifier.waits_for_proposals = True
    drafter = LocalDrafter(str(checkpoint), dtype="bfloat16", weights="int8", threads=1, kv_slots=4096)
    with EdgeClient(verifier.address, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=10, seed=5).token_ids == expected_ids(5, 10)
    drafter.close()
    check(verifier.proposals, len(PROMPT_IDS))
    with pytest.raises(ModelLoadError, match="weights int8"):
        LocalDrafter(str(checkpoint), dtype="float32", weights="int8")


def test_a_verifier_that_is_lost(verifier: FakeVerifier, second_verifier: FakeVerifier, drafter: LocalDrafter) -> None:
    verifier.waits_for_proposals = second_verifier.waits_for_proposals = True
    verifier.break_after = [4]
    addresses = in_order(verifier.address, second_verifier.address)
    with EdgeClient(addresses, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
        r = client.generate(PROMPT, max_tokens=12, seed=5)
        assert r.token_ids == expected_ids(5, 12)
        assert r.resumes == 1
    (start,) = second_verifier.starts
    assert list(start.request.resume_token_ids) == expected_ids(5, 4)
    check(verifier.proposals, len(PROMPT_IDS))
    check(second_verifier.proposals, len(PROMPT_IDS) + 4)


def test_a_verifier_with_other_numerics(
    verifier: FakeVerifier, second_verifier: FakeVerifier, drafter: LocalDrafter
) -> None:
    verifier.waits_for_proposals = second_verifier.waits_for_proposals = True
    second_verifier.numerics = "other arithmetic"
    addresses = in_order(verifier.address, second_verifier.address)
    anew = RetryPolicy(attempts_per_address=2, initial_backoff=0.01, on_other_numerics="restart")
    for retry in (QUICK, anew):
        verifier.break_after = [4]
        verifier.as_it_breaks = lambda: verifier.failures.extend([rich_status(StatusCode.UNAVAILABLE, "gone")] * 20)
        verifier.failures.clear()
        with EdgeClient(addresses, model=drafter, timeout=PATIENCE, retry=retry) as client:
            if retry is anew:
                r = client.generate(PROMPT, max_tokens=12, seed=5)
                assert (r.token_ids, r.resumes, r.restarts) == (expected_ids(5, 12), 0, 1)
            else:
                with pytest.raises(NumericsMismatchError):
                    client.generate(PROMPT, max_tokens=12, seed=5)


def test_a_refused_proposal(client: EdgeClient, verifier: FakeVerifier, caplog: pytest.LogCaptureFixture) -> None:
    verifier.refuses_proposals = True
    assert client.generate(PROMPT, max_tokens=6, seed=5).token_ids == expected_ids(5, 6)
    assert "not a tree" in caplog.text


def test_an_error_is_typed(client: EdgeClient, verifier: FakeVerifier) -> None:
    verifier.failures = [rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=1.5)]
    with pytest.raises(AtCapacityError) as caught:
        client.generate(PROMPT, max_tokens=6)
    assert caught.value.retry_after_seconds == 1.5


def test_a_stream_that_is_dropped(client: EdgeClient, verifier: FakeVerifier) -> None:
    verifier.hang_after = 4
    for _ in client.stream(PROMPT, max_tokens=20):
        break
    assert verifier.cancelled.wait(PATIENCE)


def test_a_stream_that_is_closed_while_it_waits(client: EdgeClient, verifier: FakeVerifier) -> None:
    verifier.hang_after = 4

    def ended_while_waiting() -> bool:
        stream = client.stream(PROMPT, max_tokens=20)
        next(stream)
        next(stream)
        threading.Timer(0.1, stream.close).start()
        try:
            return next(stream, None) is not None
        except RequestCancelledError:
            return True

    sometimes(ended_while_waiting, "it was closed after it had begun to wait")


def test_a_drafter_that_fails(
    verifier: FakeVerifier, checkpoint: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grow(_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("draftwire_core.engine.drafters.model.draft_model.DraftModelDrafter.grow", grow)
    verifier.delay = 0.2  # otherwise the request may end before anything is drafted
    with EdgeClient(verifier.address, model=str(checkpoint), dtype="float32", kv_slots=4096, retry=QUICK) as client:
        assert client.generate(PROMPT, max_tokens=20, seed=5).token_ids == expected_ids(5, 20)
        eventually(lambda: "out of memory" in caplog.text, "the failure is logged")
        verifier.delay = 0.0
        assert client.generate(PROMPT, max_tokens=6, seed=6).token_ids == expected_ids(6, 6)
    assert len(verifier.starts) == 1  # the second request ran without drafts
    assert [record.levelno for record in caplog.records if record.name.startswith("draftwire.edge")] == [logging.ERROR]


@pytest.mark.parametrize("slots", [80, 32])
def test_more_than_fits(verifier: FakeVerifier, checkpoint: Path, caplog: pytest.LogCaptureFixture, slots: int) -> None:
    """Requests that do not fit together take turns; one that does not fit alone is drafted for as far as it fits."""
    verifier.delay = 0.01
    with EdgeClient(verifier.address, model=str(checkpoint), dtype="float32", kv_slots=slots, retry=QUICK) as client:
        results = client.generate_batch(["a", "b", "c"], max_tokens=40, seed=3)
        assert [r.token_ids for r in results] == [expected_ids(3, 40, [ord(p)]) for p in "abc"]
    assert not caplog.text


def test_a_request_longer_than_the_models_context(client: EdgeClient, verifier: FakeVerifier) -> None:
    long = list(range(97, 123)) * 10  # the tiny model's context is 256 tokens
    assert client.generate(long, max_tokens=20, seed=5).token_ids == expected_ids(5, 20, long)
    check(verifier.proposals, len(long))


def test_a_token_outside_the_models_vocabulary(client: EdgeClient, verifier: FakeVerifier) -> None:
    verifier.waits_for_proposals = False
    verifier.delay = 0.05  # time for a drafter to propose something
    assert client.generate([300], max_tokens=10, seed=5).token_ids == expected_ids(5, 10, [300])
    assert verifier.proposals == []


async def test_a_long_request_is_encoded_off_the_event_loop(
    verifier: FakeVerifier, drafter: LocalDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    of = EncodedStart.of

    def record(*args: Any) -> EncodedStart:
        threads.add(threading.get_ident())
        return of(*args)

    monkeypatch.setattr(EncodedStart, "of", record)
    monkeypatch.setattr(off_loop, "_LARGE", 256)
    async with AsyncEdgeClient(verifier.address, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
        for prompt, here in ((PROMPT, True), ("a" * 20_000, False)):
            threads.clear()
            result = await client.generate(prompt, max_tokens=2, seed=5)
            assert result.token_ids == expected_ids(5, 2, [ord(letter) for letter in prompt])
            assert (threads == {threading.get_ident()}) == here


class Followed:
    """A request that a local drafter follows, told by hand what its verifier says."""

    def __init__(self, drafter: LocalDrafter, *, prompt: list[int] = PROMPT_IDS, vocab_size: int = 200, seed: int = 5):
        self.proposals: list[Proposal] = []
        self.length = len(prompt)
        self._followed = EdgeRequest(drafter, lambda message: self.proposals.append(message.proposal))
        sampling = SamplingParams(temperature=2.0, seed=seed)
        opened = VerifyOpened(
            token_ids=prompt, sampling=sampling, max_tree_nodes=8, max_length=self.length + 5, vocab_size=vocab_size
        )
        self._followed.take(VerifyResponse(opened=opened))

    def commit(self, *tokens: int) -> None:
        self.length += len(tokens)
        verdict = Verdict(committed_length=self.length, token_ids=tokens)
        assert self._followed.take(VerifyResponse(verdict=verdict)) is None

    def is_drafted_for(self) -> bool:
        """Whether there are drafts below all committed tokens."""
        return any(proposal.committed_length == self.length for proposal in list(self.proposals))

    def close(self) -> None:
        self._followed.close()


@pytest.fixture
def other(drafter: LocalDrafter) -> Iterator[Followed]:
    """A request that is drafted for beside that of a test."""
    made = Followed(drafter, seed=9)
    eventually(made.is_drafted_for, "the other request is drafted for")
    yield made
    made.close()


class TestVocabulary:
    """The draft model has 200 ids."""

    @pytest.mark.parametrize(
        "tokens", [[200], [97, 2**32 - 1], [97] * 6], ids=["the first id beyond", "the last", "too long"]
    )
    def test_a_verdict_that_the_model_cannot_follow(
        self, drafter: LocalDrafter, other: Followed, tokens: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its request goes on without drafts; all others go on with theirs."""
        request = Followed(drafter)
        eventually(request.is_drafted_for, "it is drafted for")
        request.commit(*tokens)
        assert drafter.thread.open_sequences() == 1
        drafted = len(request.proposals)
        request.commit(98)
        other.commit(97)
        eventually(lambda: other.is_drafted_for() or not drafter.alive, "the other request is drafted for")
        assert drafter.alive
        assert drafter.thread.open_sequences() == 1
        assert len(request.proposals) == drafted
        assert not caplog.text

    def test_a_verdict_up_to_the_requests_end(self, drafter: LocalDrafter) -> None:
        request = Followed(drafter)
        request.commit(97, 98, 99, 100, 101)
        assert drafter.thread.open_sequences() == 1
        request.close()

    def test_the_models_last_id(self, drafter: LocalDrafter) -> None:
        request = Followed(drafter, prompt=[*PROMPT_IDS, 199])
        eventually(request.is_drafted_for, "its prompt is drafted for")
        request.commit(199)
        eventually(request.is_drafted_for, "it is drafted for")
        request.close()

    def test_a_prompt_with_the_first_id_beyond(self, drafter: LocalDrafter, other: Followed) -> None:
        request = Followed(drafter, prompt=[*PROMPT_IDS, 200])
        other.commit(97)
        eventually(lambda: other.is_drafted_for() or not drafter.alive, "the other request is drafted for")
        assert drafter.thread.open_sequences() == 1
        assert request.proposals == []

    @pytest.mark.parametrize(("target", "shared"), [(60, 60), (200, 200), (264, 200)])
    def test_no_id_is_drafted_that_either_lacks(self, drafter: LocalDrafter, target: int, shared: int) -> None:
        spec = drafter.spec(VerifyOpened(token_ids=[1], max_tree_nodes=8, max_length=9, vocab_size=target))
        assert spec is not None and spec.vocab_size == shared

    def test_a_target_with_fewer_ids(self, drafter: LocalDrafter) -> None:
        requests = [Followed(drafter, prompt=[1, 2], vocab_size=60, seed=seed) for seed in range(6)]
        wide = [Followed(drafter, prompt=[1, 2], seed=seed) for seed in range(6)]
        for request in requests + wide:
            eventually(request.is_drafted_for, "it is drafted for")
            request.close()
        assert drafter.thread.open_sequences() == 0
        assert max(token for request in requests for each in request.proposals for token in each.token_ids) < 60
        assert max(token for request in wide for each in request.proposals for token in each.token_ids) >= 60


class StubbornDrafter:
    """A drafter without a model: it proposes one node per step, and refuses the sequences that a test names."""

    def __init__(self) -> None:
        self.full: set[Hashable] = set()
        """Keys that cannot be opened."""
        self.lost: set[Hashable] = set()
        """Keys whose verdicts do not fit."""
        self.open_keys: list[Hashable] = []
        self._asked: set[Hashable] = set()
        self.clock = StepClock()

    @property
    def busy(self) -> bool:
        return bool(self._asked)

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        if key in self.full:
            raise DrafterFullError("no room for it")
        self.open_keys.append(key)
        self._asked.add(key)

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        if key in self.lost:
            raise OutOfSyncError("not these tokens")
        self._asked.add(key)

    def close(self, key: Hashable) -> None:
        if key in self.open_keys:
            self.open_keys.remove(key)
        self._asked.discard(key)

    def grow(self) -> Growth:
        proposals: dict[Hashable, TreeProposal] = {key: TreeProposal(1, 1, [97], [0]) for key in self._asked}
        self._asked.clear()
        return Growth([], proposals, 0.0)


class TestThread:
    def test_a_sequence_that_the_drafter_has_no_room_for(self, caplog: pytest.LogCaptureFixture) -> None:
        drafter, heard, spec = StubbornDrafter(), [], DraftSpec([1], GREEDY, 8, 9)
        drafter.full = {1}
        thread = DraftThread(drafter)
        assert [thread.open(spec, lambda _, key=key: heard.append(key)) for key in (1, 2)] == [1, 2]
        thread.commit(1, 2, [97])
        eventually(lambda: heard == [2], "the other is drafted for")
        assert thread.alive and thread.open_sequences() == 1 and drafter.open_keys == [2]
        assert "local drafts disabled for a request: no room for it" in caplog.text
        thread.stop()
        assert not thread.alive

    def test_a_verdict_that_does_not_continue_what_the_drafter_has(self, caplog: pytest.LogCaptureFixture) -> None:
        drafter, heard, spec = StubbornDrafter(), [], DraftSpec([1], GREEDY, 8, 9)
        drafter.lost = {1}
        thread = DraftThread(drafter)
        first, second = (thread.open(spec, lambda _, key=key: heard.append(key)) for key in (1, 2))
        eventually(lambda: sorted(heard) == [1, 2], "both are drafted for")
        for key in (first, second, first):
            thread.commit(key, 2, [97])
        eventually(lambda: sorted(heard) == [1, 2, 2], "the other goes on")
        assert thread.alive and thread.open_sequences() == 1 and drafter.open_keys == [2]
        assert caplog.text.count("local drafts disabled for a request: not these tokens") == 1
        thread.stop()


def test_no_such_model(verifier: FakeVerifier) -> None:
    with pytest.raises(ModelLoadError, match="no such directory"):
        EdgeClient(verifier.address, model="./nothing-here")


def test_no_model_is_loaded_for_an_address_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay in memory, and its thread run, as long as the process."""
    loaded: list[str] = []
    monkeypatch.setattr(LocalDrafter, "__init__", lambda _, model, **__: loaded.append(model))
    for kind in (EdgeClient, AsyncEdgeClient):
        with pytest.raises(ValueError, match="another machine"):
            kind("far.example:50051", model="draft")
    assert loaded == []


def test_closing_ends_its_own_drafter(verifier: FakeVerifier, checkpoint: Path) -> None:
    before = set(threading.enumerate())
    client = EdgeClient(verifier.address, model=str(checkpoint), dtype="float32", kv_slots=4096, retry=QUICK)
    assert any(thread.name == "draftwire-edge" for thread in set(threading.enumerate()) - before)
    client.close()
    assert not any(thread.name == "draftwire-edge" for thread in set(threading.enumerate()) - before)


class TestAsync:
    async def test_generate_and_resume(
        self, verifier: FakeVerifier, second_verifier: FakeVerifier, drafter: LocalDrafter
    ) -> None:
        verifier.waits_for_proposals = second_verifier.waits_for_proposals = True
        verifier.break_after = [4]
        addresses = in_order(verifier.address, second_verifier.address)
        async with AsyncEdgeClient(addresses, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
            r = await client.generate(PROMPT, max_tokens=12, seed=5)
            assert r.token_ids == expected_ids(5, 12)
            assert r.resumes >= 1
            check(verifier.proposals[:], len(PROMPT_IDS))  # before the proposals of other requests are added
            results = await client.generate_batch(["a", "b"], max_tokens=10, seed=3)
            assert [r.token_ids for r in results] == [expected_ids(3, 10, [ord(p)]) for p in "ab"]

    async def test_a_stream_that_is_dropped(self, verifier: FakeVerifier, drafter: LocalDrafter) -> None:
        verifier.hang_after = 4
        async with AsyncEdgeClient(verifier.address, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
            async for _ in client.stream(PROMPT, max_tokens=20):
                break
            assert await asyncio.to_thread(verifier.cancelled.wait, PATIENCE)

    async def test_a_cancelled_task(self, verifier: FakeVerifier, drafter: LocalDrafter) -> None:
        verifier.hang_after = 4
        async with AsyncEdgeClient(verifier.address, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE) as until:
                    generating = asyncio.create_task(client.generate(PROMPT, max_tokens=20))
                    while not verifier.running:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                    until.reschedule(asyncio.get_running_loop().time() + 0.1)
                    await generating
            assert await asyncio.to_thread(verifier.cancelled.wait, PATIENCE)

    async def test_closing_ends_what_runs(self, verifier: FakeVerifier, drafter: LocalDrafter) -> None:
        verifier.hang_after = 2
        client = AsyncEdgeClient(verifier.address, model=drafter, timeout=PATIENCE, retry=QUICK)
        stream = client.stream(PROMPT, max_tokens=20)
        await anext(stream)
        await client.close()
        with pytest.raises(RequestCancelledError):
            await anext(stream)


@pytest.fixture
def poisoned() -> Iterator[list[FakeVerifier]]:
    with ExitStack() as running:
        fakes = [running.enter_context(FakeVerifier()) for _ in range(3)]
        for fake in fakes:
            fake.dies_on = "poison"
        yield fakes


def test_a_request_that_ends_its_verifiers(poisoned: list[FakeVerifier], drafter: LocalDrafter) -> None:
    addresses = in_order(*(fake.address for fake in poisoned))
    with EdgeClient(addresses, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(UnavailableError, match="not sent again"):
            client.generate("poison", max_tokens=4)
    assert [len(fake.starts) for fake in poisoned] == [1, 1, 0]


async def test_such_a_request_with_asyncio(poisoned: list[FakeVerifier], drafter: LocalDrafter) -> None:
    addresses = in_order(*(fake.address for fake in poisoned))
    async with AsyncEdgeClient(addresses, model=drafter, timeout=PATIENCE, retry=QUICK) as client:
        with pytest.raises(UnavailableError, match="not sent again"):
            await client.generate("poison", max_tokens=4)
    assert [len(fake.starts) for fake in poisoned] == [1, 1, 0]
