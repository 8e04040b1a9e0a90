# Generated from tests/sdk/test_async_client.py by scripts/generate_sync.py. Do not edit.

"""The synchronous client against a verifier without a model."""

import gc
from collections.abc import Iterator

import pytest
from grpc import StatusCode

from draftwire import (
    AcceptanceClass,
    AcceptanceCount,
    Calibration,
    Client,
    DeadlineExceededError,
    InvalidFieldError,
    RejectedDraft,
    RequestCancelledError,
    Speculation,
    SpeculationGain,
    StepCost,
    UnavailableError,
)
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK


@pytest.fixture
def client(verifier: FakeVerifier) -> Iterator[Client]:
    with Client(verifier.address, timeout=PATIENCE, retry=QUICK) as made:
        yield made


def cancelled(verifier: FakeVerifier) -> bool:
    return verifier.cancelled.wait(PATIENCE)


def idle(verifier: FakeVerifier) -> bool:
    return verifier.is_idle()


def test_generate(client: Client) -> None:
    r = client.generate(PROMPT, max_tokens=7, seed=5)
    assert r.token_ids == expected_ids(5, 7)
    assert r.text == str(r) == text_of(r.token_ids)
    assert (r.finish_reason, r.seed, r.stop, r.resumes) == ("length", 5, None, 0)
    assert r.prompt_token_ids == PROMPT_IDS
    assert r.request_id == "fake-1"
    assert (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) == (5, 7, 12)
    assert (r.usage.first_token_seconds, r.usage.total_seconds) == (0.25, 0.5)
    s = r.speculation
    assert (s.steps, s.draft_tokens, s.accepted_tokens) == (4, 8, 3)
    assert s.hits == 2
    assert s.acceptance_rate == 3 / 8
    assert s.acceptance_length == 7 / 4
    assert (s.drafters[0].name, s.drafters[0].acceptance_rate) == ("good", 3 / 8)


def test_token_ids_as_prompt(client: Client, verifier: FakeVerifier) -> None:
    r = client.generate(PROMPT_IDS, max_tokens=4, seed=5)
    assert r.token_ids == expected_ids(5, 4)
    assert r.prompt_token_ids == PROMPT_IDS
    assert verifier.requests[0].WhichOneof("prompt") == "token_ids"


def test_the_seed_is_reported(client: Client, verifier: FakeVerifier) -> None:
    r = client.generate(PROMPT, max_tokens=4)
    assert r.seed == verifier.requests[0].sampling.seed
    assert client.generate(PROMPT, max_tokens=4, seed=r.seed).token_ids == r.token_ids


def test_nothing_drafted_is_a_rate_of_zero(client: Client) -> None:
    s = client.generate(PROMPT, max_tokens=0).speculation
    assert (s.acceptance_rate, s.acceptance_length) == (0.0, 0.0)


def test_stream(client: Client) -> None:
    with client.stream(PROMPT, max_tokens=5, seed=5) as stream:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.result
        chunks = list(stream)
    ids = expected_ids(5, 5)
    assert [c.token_ids for c in chunks] == [ids[:2], ids[2:4], ids[4:], []]
    assert chunks[0].sources == ["good", None]
    assert chunks[0].token_texts == [chr(ids[0]), chr(ids[1])]
    assert "".join(c.text for c in chunks) == stream.result.text == text_of(ids)
    assert stream.seed == 5
    assert next(stream, None) is None


def test_rejected_draft_tokens_come_to_those_who_ask(client: Client) -> None:
    plain, asking = [list(client.stream(PROMPT, max_tokens=4, seed=5, report_rejected=asks)) for asks in (False, True)]
    assert all(chunk.rejected == [] for chunk in plain)
    assert asking[1].rejected == [RejectedDraft(63, "?", "good", len(PROMPT_IDS) + 2, 1)]


def test_a_stream_that_is_read_to_the_end_is_not_cancelled(client: Client, verifier: FakeVerifier) -> None:
    for _ in range(20):
        client.generate(PROMPT, max_tokens=3)
    assert idle(verifier)
    assert not verifier.cancelled.is_set()


def test_chat(client: Client) -> None:
    messages = [{"role": "user", "content": "hi"}]
    r = client.chat(messages, max_tokens=4, seed=1)
    assert r.token_ids == expected_ids(1, 4, [ord(c) for c in "userhi"])
    assert "".join([c.text for c in client.stream_chat(messages, max_tokens=4, seed=1)]) == r.text


def test_batch_keeps_the_order_and_runs_concurrently(client: Client, verifier: FakeVerifier) -> None:
    verifier.gathers = 2
    prompts: list[str | list[int]] = ["a", [98, 99], "ccc", "dddd"]
    results = client.generate_batch(prompts, max_tokens=6, seed=9)
    assert [r.token_ids for r in results] == [expected_ids(9, 6, p) for p in [[97], [98, 99], [99] * 3, [100] * 4]]
    assert verifier.most_running > 1
    verifier.delay, verifier.most_running = 0.01, 0
    client.generate_batch(prompts, max_tokens=6, seed=[1, 2, 3, 4], max_concurrency=2)
    assert verifier.most_running == 2
    assert sorted(r.sampling.seed for r in verifier.requests[-4:]) == [1, 2, 3, 4]


def test_batch_of_nothing(client: Client) -> None:
    assert client.generate_batch([]) == []


def test_one_failure_cancels_the_batch(client: Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    verifier.failures.append(rich_status(StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("max_tokens",)))
    with pytest.raises(InvalidFieldError):
        client.generate_batch(["a", "b", "c"], max_tokens=8)
    assert idle(verifier)


def test_rules_of_acceptance_in_results(client: Client) -> None:
    plain = client.generate(PROMPT, max_tokens=2).speculation
    assert (plain.acceptance, plain.preset, plain.threshold, plain.lossless) == ("coupled", None, None, True)
    found = client.generate(PROMPT, max_tokens=2, speculation=Speculation(preset="auto")).speculation
    assert (found.acceptance, found.preset, found.threshold, found.lossless) == ("threshold", "code", 0.75, False)


def test_speculation_off(client: Client, verifier: FakeVerifier) -> None:
    client.generate(PROMPT, max_tokens=2, speculation=Speculation(enabled=False))
    assert not verifier.requests[0].speculation.enabled


@pytest.mark.parametrize("how", ["close", "with", "break"])
def test_ending_early_cancels_the_call(client: Client, verifier: FakeVerifier, how: str) -> None:
    verifier.hang_after = 2
    if how == "break":
        for _ in client.stream(PROMPT, max_tokens=20):
            break
        gc.collect()
    elif how == "with":
        with client.stream(PROMPT, max_tokens=20) as stream:
            next(stream)
    else:
        stream = client.stream(PROMPT, max_tokens=20)
        next(stream)
        stream.close()
        assert next(stream, None) is None
    assert cancelled(verifier)


def test_closing_the_client_cancels_what_runs(client: Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    stream = client.stream(PROMPT, max_tokens=20)
    next(stream)
    client.close()
    with pytest.raises(RequestCancelledError):
        next(stream)
    assert cancelled(verifier)
    with pytest.raises(RuntimeError, match="closed"):
        client.model_info()


def test_tokenizer(client: Client) -> None:
    assert client.tokenize("ab") == [97, 98]
    assert client.tokenize("ab", add_special_tokens=True) == [1, 97, 98]
    assert client.detokenize([97, 98]) == "ab"


def test_model_info(client: Client) -> None:
    info = client.model_info()
    assert (info.model_id, info.vocab_size, info.eos_token_ids, info.build) == ("fake", 128, [0], "fake 1")
    assert info.limits.max_sequences == 4
    assert info.engine.total_slots == 64
    assert (info.engine.times.steps, info.engine.times.forward, info.engine.times.wait) == (3, 1.5, 0.0)
    planner = info.engine.planner
    assert planner.step_costs == [StepCost(8, 0.125)]
    assert planner.calibrations == [Calibration("good", [AcceptanceClass(1, 0.3, 0.5, 20.0)], 0.75, 0.25, 0.0)]
    assert (planner.tree_size, planner.gained_tokens, planner.probe_rows) == (2.5, 2.5, 12)
    assert info.engine.gain == SpeculationGain(30, 12, 2.0, 3.0)
    assert (info.engine.gain.speed_up, info.engine.gain.tokens_per_sequence) == (1.5, 2.5)
    assert info.engine.acceptance == [AcceptanceCount("typical", 2, 30, 20, 10)]


def test_drafters(client: Client, verifier: FakeVerifier) -> None:
    good, bad = client.drafters.list()
    assert (good.name, bad.name, good.state, good.acceptance_rate) == ("good", "bad", "ready", 0.7)
    assert (good.labels, good.accepted_per_second) == ({"domain": "code"}, 120.4)
    assert good.step_seconds == 0.003
    assert good.response_seconds is None
    assert good.model is not None
    assert good.model.model_id == "draft"
    assert good.attached_at is not None
    assert good.attached_at.year == 2023
    assert client.drafters.attach("here:1").name == "here:1"
    assert client.drafters.attach("here:1", "mine").name == "mine"
    assert client.drafters.detach("mine").name == "mine"
    swap = client.drafters.swap("good", "bad")
    assert (swap.drafter.name, swap.moved_sequences) == ("bad", 3)


def test_watch(client: Client, verifier: FakeVerifier) -> None:
    with client.drafters.watch() as states:
        assert [d.name for d in next(states)] == ["good"]
        assert next(states) == []
    assert cancelled(verifier)
    assert (verifier.remaining_seconds[-1] or 0.0) > PATIENCE  # the client's timeout does not end it


def test_calls_that_must_not_run_twice_are_not_repeated(client: Client, verifier: FakeVerifier) -> None:
    lost = rich_status(StatusCode.UNAVAILABLE, "lost")
    verifier.failures += [lost, lost]
    assert client.drafters.list()  # retried twice
    assert verifier.calls == ["ListDrafters"] * 3
    verifier.failures.append(lost)
    with pytest.raises(UnavailableError):
        client.drafters.detach("good")
    assert verifier.calls[3:] == ["DetachDrafter"]
    verifier.failures.append(rich_status(StatusCode.UNAVAILABLE, "going", "SHUTTING_DOWN"))
    assert client.drafters.detach("good")


def test_errors(client: Client, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("max_tokens",)))
    with pytest.raises(InvalidFieldError) as caught:
        client.generate(PROMPT)
    assert caught.value.fields == ("max_tokens",)
    verifier.hang_after = 0
    verifier.calls.clear()
    for seconds in (0.2, 2, 20):  # on a busy machine it may expire before the call has reached the verifier
        with pytest.raises(DeadlineExceededError):
            client.generate(PROMPT, timeout=seconds)
        if verifier.calls:
            break
    assert cancelled(verifier)
    with Client("127.0.0.1:1", retry=QUICK) as nobody:
        with pytest.raises(UnavailableError):
            nobody.model_info()


def test_an_endless_timeout(client: Client) -> None:
    assert client.tokenize("a", timeout=float("inf"))
    assert client.generate(PROMPT, max_tokens=2, timeout=float("inf")).text
