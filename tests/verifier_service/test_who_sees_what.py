"""Visibility of texts: drafters get the requests they draft for, callers their own."""

import asyncio
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from draftwire.v1 import verifier_service_pb2
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import SpeculationOptions
from tests.harness.services.in_process_verifier import InProcessVerifier, order


def for_drafter(name: str, first: int) -> Any:
    return order([first, 9, 14], max_tokens=8, speculation=SpeculationOptions(drafter=name))


async def test_a_drafter_sees_the_requests_it_drafts_for_and_no_others(
    verifier: InProcessVerifier, listening: Any
) -> None:
    drafters = {name: listening(f"{name}:1") for name in ("a", "b")}
    for name in drafters:
        await verifier.pool.membership.attach(f"{name}:1", name)
    await asyncio.gather(
        verifier.generate(for_drafter("a", 3)),
        verifier.generate(for_drafter("b", 4)),
        verifier.plain(order([5, 9, 14], max_tokens=8)),
    )
    assert [list(opening.token_ids)[:3] for opening in drafters["a"].opened] == [[3, 9, 14]]
    assert [list(opening.token_ids)[:3] for opening in drafters["b"].opened] == [[4, 9, 14]]


async def test_a_drafter_is_told_what_it_needs_to_guess_and_nothing_of_who_asks(
    verifier: InProcessVerifier, listening: Any
) -> None:
    drafter = listening("a:1")
    await verifier.pool.membership.attach("a:1", "")
    sampling = SamplingParams(temperature=0.5, seed=3, logit_bias={7: 2.0}, banned_token_ids=[8])
    await verifier.generate(order(max_tokens=8, sampling=sampling, stop=["w1 w2"], request_id="mine"))
    told = {field.name for field, _ in drafter.opened[0].ListFields()}
    assert told <= {
        "sequence_id", "epoch", "sampling", "committed_length", "token_ids", "max_tree_nodes", "max_length",
        "request_id", "offset", "trace_context",
    }  # fmt: skip
    assert drafter.opened[0].sampling == SamplingParams(
        temperature=0.5, seed=3, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0
    )


async def test_requests_of_one_name_are_apart(verifier: InProcessVerifier) -> None:
    """A request's name is for logs and traces; knowing it gives no access."""
    orders = [order([first, 9], max_tokens=30, request_id="same") for first in range(3, 7)]
    alone = [(await verifier.plain(each)).token_ids for each in orders]
    together = [output.token_ids for output in await asyncio.gather(*map(verifier.generate, orders))]
    assert together == alone
    assert len({tuple(tokens) for tokens in alone}) > 1


def test_no_call_names_another_request() -> None:
    """By name, a client can only refer to its own request and to drafters."""
    service = verifier_service_pb2.DESCRIPTOR.services_by_name["VerifierService"]
    named = {
        f"{method.name}.{field.name}"
        for method in service.methods
        for field in method.input_type.fields
        if field.type == FieldDescriptor.TYPE_STRING and field.name.endswith(("_id", "name"))
    }
    assert named == {"Generate.request_id"}
