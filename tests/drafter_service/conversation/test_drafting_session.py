"""The whole conversation of a verifier and a drafter, without sockets."""

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import torch
from google.rpc import error_details_pb2
from transformers import AutoModelForCausalLM

from drafter_service.conversation import drafting_session, handshake, stream_sequences
from draftwire.v1 import drafter_service_pb2, model_info_pb2, sampling_pb2
from draftwire_core.engine.sampling.coupled_sampler import SamplingBatch, sample
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from tests.harness.drafter.verifier_side import PATIENCE, Request, VerifierSide, detail, opening
from tests.harness.models.tiny_checkpoint import CONTEXT, VOCABULARY
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services

PROMPT = [5, 9, 14, 23, 42, 7]


async def broken(stream: Any) -> StreamBroken:
    """Returns the error with which the drafter ended the stream."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StreamBroken) as caught:
            async for _ in stream:
                pass
    return caught.value


async def slots_used(drafter: InProcessDrafter) -> int:
    """Returns the KV slots in use once the drafter has handled all commands."""
    return (await drafter.status()).used_slots


class TestHandshake:
    async def test_the_drafter_says_who_it_is(self, drafter: InProcessDrafter) -> None:
        async with in_process_call(drafter.servicer.converse) as stream:
            info = await VerifierSide(stream).hello()
        assert info.protocol_revision == info.min_protocol_revision == 1
        assert info.build.startswith("draftwire ")
        assert info.model.vocab_size == VOCABULARY
        assert info.limits.max_sequences == 64
        assert info.model.context_length == CONTEXT
        assert info.limits.max_sequence_tokens == handshake.MOST_TOKENS > CONTEXT
        assert info.limits.max_message_bytes > 0

    async def test_a_first_message_that_is_no_hello_ends_the_stream(self, drafter: InProcessDrafter) -> None:
        async with in_process_call(drafter.servicer.converse) as stream:
            await stream.write(Request(open=opening(1, PROMPT)))
            fault = await broken(stream)
        assert (fault.code, fault.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "HANDSHAKE_EXPECTED")

    async def test_a_second_hello_ends_the_stream(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.stream.write(Request(hello=model_info_pb2.PeerInfo(protocol_revision=1)))
            assert (await broken(verifier.stream)).reason_name == "HANDSHAKE_EXPECTED"

    async def test_a_verifier_that_says_nothing_is_let_go(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(handshake, "_HANDSHAKE_SECONDS", 0.05)
        async with in_process_call(drafter.servicer.converse) as stream:
            assert (await broken(stream)).reason_name == "HANDSHAKE_EXPECTED"

    @pytest.mark.parametrize("revisions", [(0, 0), (3, 2)])
    async def test_no_shared_protocol_revision(self, drafter: InProcessDrafter, revisions: tuple[int, int]) -> None:
        newest, oldest = revisions
        async with in_process_call(drafter.servicer.converse) as stream:
            await stream.write(
                Request(hello=model_info_pb2.PeerInfo(protocol_revision=newest, min_protocol_revision=oldest))
            )
            fault = await broken(stream)
        assert (fault.code, fault.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_MISMATCH")

    async def test_another_tokenizer_is_refused_and_both_are_named(self, drafter: InProcessDrafter) -> None:
        theirs = model_info_pb2.ModelInfo(model_id="their-model", tokenizer_sha256="their-hash")
        async with in_process_call(drafter.servicer.converse) as stream:
            await stream.write(Request(hello=model_info_pb2.PeerInfo(protocol_revision=1, model=theirs)))
            fault = await broken(stream)
        assert (fault.code, fault.reason_name) == (grpc.StatusCode.FAILED_PRECONDITION, "TOKENIZER_MISMATCH")
        for part in ("their-model", "their-hash", drafter.model.name.rpartition("/")[2], "our-hash"):
            assert part in fault.status.message
        assert detail(fault.status, error_details_pb2.PreconditionFailure).violations[0].type == "TOKENIZER_MISMATCH"

    async def test_the_reason_of_a_refusal_is_logged_once(self, drafter: InProcessDrafter) -> None:
        theirs = model_info_pb2.ModelInfo(model_id="their-model", tokenizer_sha256="their-hash")
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                async with in_process_call(lambda stream: drafter.servicer.converse(stream, "them")) as stream:
                    await stream.write(Request(hello=model_info_pb2.PeerInfo(protocol_revision=1, model=theirs)))
                    await broken(stream)
        (told,) = (each for each in logs if each["event"] == "handshake refused")
        assert told["verifier"] == "them"
        assert "--target-tokenizer" in told["reason"]

    async def test_a_verifier_that_leaves_before_the_hello_is_no_fault(self, drafter: InProcessDrafter) -> None:
        async with in_process_call(drafter.servicer.converse) as stream:
            await stream.close()
            async with asyncio.timeout(PATIENCE):
                assert await stream.read() is None


class TestDrafting:
    @pytest.mark.parametrize("temperature", [0.0, 0.9])
    async def test_first_children_are_the_draft_models_coupled_samples(
        self, drafter: InProcessDrafter, temperature: float
    ) -> None:
        plain = AutoModelForCausalLM.from_pretrained(drafter.model.name, dtype=torch.float32)
        params = SamplingParams(temperature=temperature, top_k=40, seed=11)
        sampling = sampling_pb2.SamplingParams(temperature=temperature, top_k=40, seed=11)
        async with drafter.connected() as verifier:
            await verifier.open(3, PROMPT, sampling=sampling)
            mirror = verifier.mirrors[3]
            tokens = list(PROMPT)
            for _ in range(8):
                await verifier.until(lambda: mirror.tree.root.children)
                with torch.inference_mode():
                    logits = plain(torch.tensor([tokens])).logits[0, -1:]
                expected = int(sample(logits, SamplingBatch.build([params], [len(tokens)])).token_ids[0])
                assert next(iter(mirror.tree.root.children)) == expected
                tokens.append(expected)
                await verifier.commit({3: [expected]})
        assert verifier.opened == [(3, 1)]

    async def test_the_drafter_tells_what_it_does_with_its_time_and_decides_by(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size >= 4)
            status = await drafter.status()
        times = status.times
        assert times.steps > 0
        assert status.drafted_nodes >= 4
        assert all(cost.rows > 0 and cost.time.ToNanoseconds() > 0 for cost in status.step_costs)
        assert len(status.step_costs) > 0
        assert {each.rank for each in status.classes} == {0, 1, 2}
        for part in (times.plan, times.layout, times.forward, times.sample, times.walk, times.wire, times.event_loop):
            assert part.ToNanoseconds() > 0

    async def test_a_chunked_opening_drafts_the_same(self, drafter: InProcessDrafter) -> None:
        prompt = [(7 * index) % 100 + 3 for index in range(60)]
        async with drafter.connected() as verifier:
            await verifier.open(1, prompt)
            await verifier.open(2, prompt, chunk=7)
            whole, chunked = verifier.mirrors[1], verifier.mirrors[2]
            await verifier.until(lambda: whole.tree.size >= 4 and chunked.tree.size >= 4)
            assert whole.best_path()[:2] == chunked.best_path()[:2]

    async def test_a_verdict_that_leaves_the_tree_starts_afresh(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            mirror = verifier.mirrors[1]
            await verifier.until(lambda: mirror.tree.size)
            other = next(token for token in range(50, 60) if token not in mirror.tree.root.children)
            await verifier.commit({1: [other]})
            assert mirror.tree.size == 0
            await verifier.until(lambda: mirror.tree.size)

    async def test_a_proposal_that_uses_up_the_credit_is_the_last(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT, credit=1)
            for _ in range(3):
                verifier.finished.clear()
                await verifier.until(lambda: 1 in verifier.finished)
                await verifier.commit({1: verifier.mirrors[1].best_path()[:1]})

    @pytest.mark.parametrize("credit", [1, 5])
    async def test_credit_is_never_exceeded(self, drafter: InProcessDrafter, credit: int) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT, credit=credit)
            mirror = verifier.mirrors[1]
            for _ in range(10):
                await verifier.until(lambda: mirror.tree.root.children)
                await drafter.open_sequences()
                assert mirror.tree.size <= credit  # in addition, the reader would raise CREDIT_EXCEEDED
                await verifier.commit({1: mirror.best_path()[:1]})

    async def test_a_verdict_may_give_less_credit_until_the_next_one(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT, credit=8)
            mirror = verifier.mirrors[1]
            sizes = []
            for most in (1, 2, 100, None, 1):
                other = next(token for token in range(50, 60) if token not in mirror.tree.root.children)
                await verifier.commit({1: [other]}, max_tree_nodes=most)
                await verifier.until(lambda: mirror.tree.size)
                for number in range(20):  # at least this many steps
                    await drafter.open_sequences()
                    await verifier.ping(number)
                    await verifier.until(lambda number=number: number in verifier.pongs)  # type: ignore[misc]
                verifier.pongs.clear()
                sizes.append(mirror.tree.size)
            assert sizes[:2] == [1, 2]
            assert all(2 < size <= 8 for size in sizes[2:4])
            assert sizes[4] == 1

    async def test_no_credit_at_all_names_its_field(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            with pytest.raises(StreamBroken, match=r"verdicts\.max_tree_nodes: must be at least 1"):
                await verifier.commit({1: [5]}, max_tree_nodes=0)
                await verifier.until(lambda: False)

    async def test_the_drafters_own_limit_caps_the_credit(self, services: Services, checkpoint: Path) -> None:
        async with (
            services.in_process_drafter(checkpoint, max_tree_nodes=3) as drafter,
            drafter.connected() as verifier,
        ):
            await verifier.open(1, PROMPT, credit=1000)
            mirror = verifier.mirrors[1]
            await verifier.until(lambda: mirror.tree.size)
            for _ in range(20):  # at least this many steps
                await drafter.open_sequences()
            await verifier.close(1)
            await verifier.end()
            assert 1 <= mirror.tree.size <= 3

    async def test_nothing_is_drafted_beyond_the_shared_vocabulary(self, drafter: InProcessDrafter) -> None:
        """Two verifiers with the same tokenizer, one with a smaller output layer, share a batch."""
        small = model_info_pb2.ModelInfo(tokenizer_sha256="our-hash", vocab_size=60)
        async with drafter.connected(model=small) as narrow, drafter.connected() as wide:
            narrow.vocab_size = 60  # the reader refuses anything beyond
            seen: set[int] = set()
            for seed in range(6):
                sampling = sampling_pb2.SamplingParams(temperature=2.0, seed=seed)
                await narrow.open(seed, PROMPT, sampling=sampling)
                await wide.open(seed, PROMPT, sampling=sampling)
            await narrow.until(lambda: all(mirror.tree.size for mirror in narrow.mirrors.values()))
            await wide.until(lambda: all(mirror.tree.size for mirror in wide.mirrors.values()))
            for mirror in wide.mirrors.values():
                seen.update(mirror.tree.root.children)
            assert max(seen) >= 60

    async def test_a_draft_model_that_yields_nan_drafts_nothing(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forward = drafter.model.forward
        monkeypatch.setattr(drafter.model, "forward", lambda batch: forward(batch) * torch.nan)
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.opened)
            await verifier.commit({1: [5]})
            await verifier.end()
            assert verifier.batches == 0
            assert verifier.errors == []

    async def test_two_verifiers_share_the_batch_and_do_not_mix(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as one, drafter.connected() as two:
            await one.open(1, PROMPT)
            await two.open(1, PROMPT[::-1], epoch=4)
            await one.until(lambda: one.mirrors[1].tree.size >= 3)
            await two.until(lambda: two.mirrors[1].tree.size >= 3)
            assert await drafter.open_sequences() == 2
            assert one.mirrors[1].best_path() != two.mirrors[1].best_path()
            await one.end()
            assert await drafter.open_sequences() == 1
            await two.commit({1: two.mirrors[1].best_path()[:2]})
            await two.until(lambda: two.mirrors[1].tree.size >= 3)

    @pytest.mark.parametrize("seed", range(3))
    async def test_whatever_the_verdicts_proposals_fit_and_slots_come_back(
        self, drafter: InProcessDrafter, seed: int
    ) -> None:
        """Verdicts that cross with proposals, openings and closings come in any order, on two streams."""
        rng = random.Random(seed)

        async def converse(verifier: VerifierSide) -> None:
            epoch = 0
            for _ in range(150):
                sequence_id = rng.randrange(4)
                mirror = verifier.mirrors.get(sequence_id)
                if mirror is None or len(mirror.tokens) > 60 or rng.random() < 0.1:
                    epoch += 1
                    prompt = [rng.randrange(3, 100) for _ in range(rng.randrange(1, 30))]
                    sampling = sampling_pb2.SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=epoch)
                    credit, chunk = rng.randrange(1, 12), rng.choice([0, 3])
                    await verifier.open(
                        sequence_id, prompt, epoch=epoch, credit=credit, chunk=chunk, sampling=sampling, max_length=100
                    )
                elif rng.random() < 0.05:
                    await verifier.close(sequence_id)
                    epoch += 1
                    await verifier.open(sequence_id, mirror.tokens, epoch=epoch)
                else:
                    if rng.random() < 0.7:
                        await verifier.until(lambda mirror=mirror: mirror.tree.root.children)
                    accepted = mirror.best_path()[: rng.randrange(4)]
                    await verifier.commit({sequence_id: [*accepted, rng.randrange(3, 100)]})
            await verifier.end()
            assert verifier.errors == []

        async with drafter.connected() as one, drafter.connected() as two:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(converse(one))
                tasks.create_task(converse(two))
        assert await drafter.open_sequences() == 0
        assert await slots_used(drafter) == 0


class TestSequenceFaults:
    async def test_one_sequences_fault_leaves_the_others(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.open(2, PROMPT)
            await verifier.send_verdict(1, 99, [5])
            reason, error = await verifier.error(1)
            assert (reason, error.epoch) == ("OUT_OF_SYNC", 1)
            assert error.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
            await verifier.until(lambda: verifier.mirrors[2].tree.size)
            assert await drafter.open_sequences() == 1

    async def test_a_verdict_about_nothing(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.send_verdict(8, 9, [5], epoch=2)
            await verifier.send_verdict(8, 10, [5], epoch=2)  # sent before the error arrived: answered only once
            reason, error = await verifier.error(8)
            assert (reason, error.epoch) == ("UNKNOWN_SEQUENCE", 2)
            await verifier.end()
            assert verifier.errors == []

    async def test_an_empty_verdict_is_out_of_sync(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.send_verdict(1, len(PROMPT), [])
            assert (await verifier.error(1))[0] == "OUT_OF_SYNC"

    async def test_a_failed_sequence_can_be_opened_again(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.send_verdict(1, 99, [5])
            await verifier.error(1)
            await verifier.open(1, [*PROMPT, 5], epoch=2)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)

    async def test_at_capacity(self, services: Services, checkpoint: Path) -> None:
        async with services.in_process_drafter(checkpoint, max_sequences=2) as drafter, drafter.connected() as verifier:
            for sequence_id in (1, 2):
                await verifier.open(sequence_id, PROMPT)
            await verifier.open(3, PROMPT, chunk=2)  # the later chunks of the refused opening are not another fault
            reason, error = await verifier.error(3)
            assert reason == "AT_CAPACITY"
            assert detail(error.status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() > 0
            await verifier.close(1)
            await verifier.open(3, PROMPT, epoch=2)
            await verifier.until(lambda: verifier.mirrors[3].tree.size)
            assert verifier.errors == []

    async def test_without_kv_slots_a_sequence_waits(self, services: Services, checkpoint: Path) -> None:
        async with (
            services.in_process_drafter(checkpoint, kv_slots=150, max_tree_nodes=16) as drafter,
            drafter.connected() as verifier,
        ):
            prompt = [5 + index % 90 for index in range(60)]
            await verifier.open(1, prompt, max_length=100)
            await verifier.open(2, prompt, max_length=100)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            await verifier.commit({1: [7], 2: [7]})
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            assert verifier.opened == [(1, 1)]
            await verifier.close(1)
            await verifier.until(lambda: verifier.mirrors[2].tree.size)
            assert verifier.opened == [(1, 1), (2, 1)] and verifier.errors == []

    @pytest.mark.parametrize(
        ("changes", "reason", "field"),
        [
            ({"token_ids": [1, 2, VOCABULARY]}, "TOKEN_OUT_OF_RANGE", "token_ids[2]"),
            ({"token_ids": []}, "INVALID_FIELD", "token_ids"),
            ({"token_ids": [1, 2, 3, 4]}, "INVALID_FIELD", "token_ids"),
            ({"offset": 1}, "INVALID_FIELD", "offset"),
            ({"committed_length": 0}, "INVALID_FIELD", "committed_length"),
            (
                {"committed_length": handshake.MOST_TOKENS + 1, "max_length": 1 << 30},
                "CONTEXT_EXCEEDED",
                "committed_length",
            ),
            ({"max_length": 2}, "INVALID_FIELD", "max_length"),
            ({"max_tree_nodes": 0}, "INVALID_FIELD", "max_tree_nodes"),
            (
                {"sampling": sampling_pb2.SamplingParams(temperature=-1, seed=1)},
                "INVALID_FIELD",
                "sampling.temperature",
            ),
            ({"sampling": sampling_pb2.SamplingParams(top_p=0, seed=1)}, "INVALID_FIELD", "sampling.top_p"),
            ({"sampling": sampling_pb2.SamplingParams(typical_p=2, seed=1)}, "INVALID_FIELD", "sampling.typical_p"),
            ({"sampling": sampling_pb2.SamplingParams()}, "INVALID_FIELD", "sampling.seed"),
        ],
    )
    async def test_a_bad_opening_names_its_field(
        self, drafter: InProcessDrafter, changes: dict[str, Any], reason: str, field: str
    ) -> None:
        message = opening(1, [1, 2, 3])
        for name, value in changes.items():
            message.ClearField(name)
            if name == "token_ids":
                message.token_ids.extend(value)
            elif name == "sampling":
                message.sampling.CopyFrom(value)
            else:
                setattr(message, name, value)
        async with drafter.connected() as verifier:
            await verifier.stream.write(Request(open=message))
            found, error = await verifier.error(1)
            assert found == reason
            assert detail(error.status, error_details_pb2.BadRequest).field_violations[0].field == field
            assert field in error.status.message
            await verifier.open(2, PROMPT)
            await verifier.until(lambda: verifier.mirrors[2].tree.size)

    async def test_a_verdicts_token_out_of_range(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.send_verdict(1, len(PROMPT) + 2, [5, VOCABULARY])
            reason, error = await verifier.error(1)
            assert reason == "TOKEN_OUT_OF_RANGE"
            assert "token_ids[1]" in error.status.message

    @pytest.mark.parametrize("length", [CONTEXT - 20, 3 * CONTEXT])
    async def test_drafting_goes_on_beyond_the_models_context(self, drafter: InProcessDrafter, length: int) -> None:
        prompt = [3 + index % 90 for index in range(length)]
        async with drafter.connected() as verifier:
            await verifier.open(1, prompt, max_length=10 * CONTEXT)
            for number in range(80):
                await verifier.until(lambda: verifier.mirrors[1].tree.size)
                await verifier.commit({1: [5 + number, 6]})
            assert verifier.errors == []
            assert 0 < await slots_used(drafter) <= CONTEXT + drafter.settings.max_tree_nodes
            await verifier.close(1)
            assert await slots_used(drafter) == 0

    async def test_incomplete_openings_are_bounded(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stream_sequences, "MOST_TOKENS", 500)
        async with drafter.connected() as verifier:
            for number, length in ((1, 400), (2, 101), (3, 90)):
                message = opening(number, [5] * length)
                del message.token_ids[50:]
                await verifier.stream.write(Request(open=message))
            assert (await verifier.error(2))[0] == "AT_CAPACITY"
            await verifier.open(4, PROMPT, chunk=2)
            await verifier.until(lambda: verifier.mirrors[4].tree.size)
            assert verifier.errors == []

    async def test_a_verdict_beyond_the_requests_own_end(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT, max_length=len(PROMPT) + 1)
            await verifier.commit({1: [5, 6]})
            reason, error = await verifier.error(1)
            assert reason == "INVALID_FIELD"
            assert "committed_length" in error.status.message


class TestEpochs:
    async def test_a_new_opening_replaces_the_old(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            await verifier.open(1, PROMPT[::-1], epoch=2)
            await verifier.send_verdict(1, len(PROMPT) + 1, [5], epoch=1)  # for the old epoch: ignored
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            assert verifier.opened == [(1, 1), (1, 2)]
            assert await drafter.open_sequences() == 1
            await verifier.end()
            assert verifier.errors == []

    async def test_an_older_or_repeated_opening_changes_nothing(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT, epoch=5)
            mirror = verifier.mirrors[1]
            for epoch in (4, 5):
                await verifier.stream.write(Request(open=opening(1, [9], epoch=epoch)))
            await verifier.until(lambda: mirror.tree.size)
            await verifier.commit({1: mirror.best_path()[:1]})
            await verifier.until(lambda: mirror.tree.size >= 2)
            await verifier.end()
            assert verifier.opened == [(1, 5)]
            assert verifier.errors == []

    async def test_an_opening_can_start_over_between_chunks(self, drafter: InProcessDrafter) -> None:
        first = opening(1, PROMPT)
        first.token_ids[:] = PROMPT[:3]
        async with drafter.connected() as verifier:
            await verifier.stream.write(Request(open=first))
            await verifier.open(1, PROMPT, chunk=2)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            assert verifier.errors == []


class TestEnd:
    async def test_closing_frees_the_slots(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.open(2, PROMPT)
            await verifier.until(lambda: all(mirror.tree.size for mirror in verifier.mirrors.values()))
            assert await slots_used(drafter) > 0
            await verifier.close(1, 2, 77)
            await verifier.end()
            assert await drafter.open_sequences() == 0
            assert await slots_used(drafter) == 0

    async def test_an_error_from_the_verifier_closes_the_sequence(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            error = drafter_service_pb2.SequenceError(sequence_id=1, epoch=1)
            await verifier.stream.write(Request(sequence_error=error))
            await verifier.end()
            assert await slots_used(drafter) == 0

    @pytest.mark.parametrize("way", ["half-close", "cancel"])
    async def test_a_streams_end_frees_everything(self, drafter: InProcessDrafter, way: str) -> None:
        async with drafter.connected() as verifier:
            for sequence_id in range(5):
                await verifier.open(sequence_id, PROMPT)
            await verifier.until(lambda: all(mirror.tree.size for mirror in verifier.mirrors.values()))
            assert await slots_used(drafter) > 0
            if way == "half-close":
                await verifier.end()
            else:
                await verifier.stream.sever(StreamBroken.of(grpc.StatusCode.CANCELLED, "gone"))
        assert await drafter.open_sequences() == 0
        assert await slots_used(drafter) == 0
        assert drafter.changes.streams == 0

    async def test_a_verifier_that_does_not_read_is_let_go(
        self, drafter: InProcessDrafter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(drafting_session, "_MAX_QUEUED", 4)
        async with in_process_call(drafter.servicer.converse, max_buffered=2) as stream:
            verifier = VerifierSide(stream)
            await verifier.hello()
            with pytest.raises(StreamBroken):  # every message gets an answer that nobody reads
                async with asyncio.timeout(PATIENCE):
                    for sequence_id in range(100):
                        await stream.write(Request(open=opening(sequence_id, [])))
            fault = await broken(stream)
            assert (fault.code, fault.reason_name) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "AT_CAPACITY")
            assert detail(fault.status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() > 0

    async def test_the_services_end_is_a_clean_end(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier, in_process_call(drafter.servicer.converse) as silent:
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
            async with asyncio.timeout(PATIENCE):
                await drafter.servicer.end_sessions()
                assert await silent.read() is None
                async for _ in verifier.stream:
                    pass
            assert await slots_used(drafter) == 0
            async with in_process_call(drafter.servicer.converse) as late:
                assert (await broken(late)).reason_name == "SHUTTING_DOWN"

    async def test_a_message_of_a_newer_kind_is_ignored(self, drafter: InProcessDrafter) -> None:
        async with drafter.connected() as verifier:
            await verifier.stream.write(Request.FromString(b"\xfa\x01\x03new"))
            await verifier.open(1, PROMPT)
            await verifier.until(lambda: verifier.mirrors[1].tree.size)
