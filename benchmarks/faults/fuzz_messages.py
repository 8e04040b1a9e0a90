"""Messages of honest peers, which fuzzing corrupts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from draftwire.v1 import drafter_pool_service_pb2 as pool_pb
from draftwire.v1 import drafter_service_pb2 as draft_pb
from draftwire.v1 import verifier_service_pb2 as verifier_pb
from draftwire.v1.model_info_pb2 import Limits, ModelInfo, PeerInfo
from draftwire.v1.proposal_pb2 import Proposal, ProposalBatch
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import SpeculationOptions
from draftwire.v1.verdict_pb2 import Verdict, VerdictBatch

FUZZED = "fuzz"
"""Prefix of the names of drafters that fuzzing attaches; a number follows."""
_NOWHERE = ("127.0.0.1:1", "127.0.0.1:9")
"""Addresses that refuse connections at once."""


def hello(vocab_size: int) -> PeerInfo:
    """Returns the handshake of a peer that fits any other."""
    return PeerInfo(
        protocol_revision=1,
        min_protocol_revision=1,
        build="fuzz",
        capabilities=["ping"],
        model=ModelInfo(model_id="fuzz", vocab_size=vocab_size, context_length=256),
        limits=Limits(max_sequences=16, max_tree_nodes=16, max_message_bytes=1 << 22, max_sequence_tokens=256),
    )


def sampling(rng: random.Random) -> SamplingParams:
    """Returns sampling parameters of one of the usual kinds."""
    return SamplingParams(temperature=rng.choice((0.0, 0.8, 1.2)), top_p=rng.choice((1.0, 0.95)), seed=rng.randrange(9))


def verifier_conversation(rng: random.Random, vocab_size: int) -> list[draft_pb.DraftRequest]:
    """Returns everything that a verifier sends on a Draft stream."""
    request = draft_pb.DraftRequest
    said = [request(hello=hello(vocab_size))]
    lengths: dict[int, int] = {}
    for sequence_id in range(1, rng.randrange(2, 5)):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 24))]
        lengths[sequence_id] = len(prompt)
        opening = draft_pb.OpenSequence(
            sequence_id=sequence_id,
            epoch=sequence_id,
            sampling=sampling(rng),
            committed_length=len(prompt),
            token_ids=prompt,
            max_tree_nodes=8,
            max_length=len(prompt) + 64,
        )
        said.append(request(open=opening))
    for number in range(rng.randrange(2, 16)):
        batch = VerdictBatch()
        for sequence_id, length in lengths.items():
            tokens = [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 4))]
            lengths[sequence_id] = length + len(tokens)
            batch.verdicts.append(
                Verdict(
                    sequence_id=sequence_id,
                    epoch=sequence_id,
                    committed_length=length + len(tokens),
                    token_ids=tokens,
                    accepted=len(tokens) - 1,
                )
            )
        said.append(request(verdicts=batch))
        if rng.random() < 0.3:
            said.append(request(ping=draft_pb.Ping(number=number)))
    said.append(request(sequence_error=draft_pb.SequenceError(sequence_id=1, epoch=1)))
    said.append(request(close=draft_pb.CloseSequences(sequence_ids=list(lengths))))
    return said


@dataclass
class Opened:
    """A sequence as an honest drafter knows it."""

    epoch: int
    committed_length: int
    next_id: int = 1


def drafter_answers(
    rng: random.Random, vocab_size: int, sequence_id: int, opened: Opened
) -> list[draft_pb.DraftResponse]:
    """Returns a drafter's message after a sequence was opened or has advanced."""
    response = draft_pb.DraftResponse
    count = rng.randrange(1, 4)
    first = opened.next_id
    opened.next_id += count
    proposal = Proposal(
        sequence_id=sequence_id,
        epoch=opened.epoch,
        committed_length=opened.committed_length,
        first_node_id=first,
        token_ids=[rng.randrange(vocab_size) for _ in range(count)],
        parent_ids=[0, *range(first, first + count - 1)],
        log_probs=[-rng.random() for _ in range(count)],
    )
    said = [
        response(opened=draft_pb.SequenceOpened(sequence_id=sequence_id, epoch=opened.epoch)),
        response(proposals=ProposalBatch(proposals=[proposal], step_seconds=0.001)),
    ]
    # Unrequested, both are faults, of which a drafter may have three per minute.
    if rng.random() < 0.001:
        said.append(response(pong=draft_pb.Pong(number=rng.randrange(3))))
    if rng.random() < 0.001:
        said.append(response(replaced=draft_pb.ModelReplaced(model=hello(vocab_size).model)))
    if rng.random() < 0.05:
        said.append(response(sequence_error=draft_pb.SequenceError(sequence_id=sequence_id, epoch=opened.epoch + 1)))
    return said


def generate_request(rng: random.Random, vocab_size: int) -> verifier_pb.GenerateRequest:
    """Returns a random request."""
    request = verifier_pb.GenerateRequest(
        request_id="fuzz",
        sampling=sampling(rng),
        max_tokens=rng.randrange(1, 12),
        ignore_eos=rng.random() < 0.5,
        stop=["\n\n"] if rng.random() < 0.3 else [],
        speculation=SpeculationOptions(max_draft_tokens=4) if rng.random() < 0.5 else None,
        resume_token_ids=[3, 5] if rng.random() < 0.2 else [],
    )
    kind = rng.randrange(3)
    if kind == 0:
        request.text = "def fib(n):"
    elif kind == 1:
        request.messages.messages.add(role="user", content="hello")
    else:
        request.token_ids.ids.extend(rng.randrange(vocab_size) for _ in range(rng.randrange(1, 20)))
    return request


def verify_conversation(rng: random.Random, vocab_size: int) -> list[verifier_pb.VerifyRequest]:
    """Returns everything that a caller with its own drafter sends."""
    request = generate_request(rng, vocab_size)
    said = [verifier_pb.VerifyRequest(start=verifier_pb.VerifyStart(request=request))]
    opened = Opened(0, max(1, len(request.token_ids.ids)))
    for _ in range(rng.randrange(1, 8)):
        for answer in drafter_answers(rng, vocab_size, 0, opened):
            said += [verifier_pb.VerifyRequest(proposal=each) for each in answer.proposals.proposals]
    return said


UNARY: dict[str, Callable[[random.Random], Any]] = {
    "DrafterPoolService/AttachDrafter": lambda rng: pool_pb.AttachDrafterRequest(
        address=rng.choice(_NOWHERE), name=f"{FUZZED} {rng.randrange(3)}"
    ),
    "DrafterPoolService/DetachDrafter": lambda rng: pool_pb.DetachDrafterRequest(name=f"{FUZZED} {rng.randrange(3)}"),
    "DrafterPoolService/SwapDrafter": lambda rng: pool_pb.SwapDrafterRequest(
        old_name=f"{FUZZED} {rng.randrange(3)}", new_name=rng.choice(_NOWHERE), request_id=f"swap {rng.randrange(3)}"
    ),
    "DrafterPoolService/StartRollout": lambda rng: pool_pb.StartRolloutRequest(
        old_name=f"{FUZZED} {rng.randrange(3)}", new_name=rng.choice(_NOWHERE), share=0.5
    ),
    "DrafterPoolService/FinishRollout": lambda rng: pool_pb.FinishRolloutRequest(new_name=f"{FUZZED} 1", promote=True),
    "DrafterPoolService/ReportLearning": lambda rng: pool_pb.ReportLearningRequest(
        drafter_name=f"{FUZZED} {rng.randrange(3)}", learning={"version": 1, "last_round": {"reason": "\x00"}}
    ),
    "DrafterPoolService/ListRollouts": lambda rng: pool_pb.ListRolloutsRequest(),
    "DrafterPoolService/ListDrafters": lambda rng: pool_pb.ListDraftersRequest(),
    "DrafterPoolService/RegisterDrafter": lambda rng: pool_pb.RegisterDrafterRequest(
        address=rng.choice(_NOWHERE), name=f"{FUZZED} {rng.randrange(3)}", leaving=rng.random() < 0.5
    ),
    "VerifierService/Tokenize": lambda rng: verifier_pb.TokenizeRequest(text="def fib(n):", add_special_tokens=True),
    "VerifierService/Detokenize": lambda rng: verifier_pb.DetokenizeRequest(token_ids=[5, 9, 14]),
    "VerifierService/GetModelInfo": lambda rng: verifier_pb.GetModelInfoRequest(),
    "DrafterService/GetModelInfo": lambda rng: draft_pb.DrafterServiceGetModelInfoRequest(),
    "DrafterService/LoadModel": lambda rng: draft_pb.LoadModelRequest(
        model="/nowhere", request_id=f"load {rng.randrange(3)}"
    ),
}
"""Calls with one response, by their path without the package. None of them names the honest drafter."""
