"""Results read from messages, by the fields that they declare."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from draftwire import Drafter, InternalError, Rollout, SpeculationStats, VerifierInfo
from draftwire._types.chat_format import ChatFormat
from draftwire._types.drafter_service import read_drafter_service_info
from draftwire._types.from_message import From, numbers_of, read, read_all
from draftwire._types.model import read_verifier_info
from draftwire._types.speculation import Acceptance, AcceptanceCount
from draftwire.v1 import drafter_pool_service_pb2 as pool
from draftwire.v1 import drafter_service_pb2 as drafting
from draftwire.v1 import speculation_pb2 as speculation
from draftwire.v1 import verifier_service_pb2 as pb

NEWER = 99
"""A number that no enum has yet."""


def test_empty_messages() -> None:
    info = read_verifier_info(pb.GetModelInfoResponse())
    assert (info.model_id, info.eos_token_ids, info.limits.max_sequences, info.started_at) == ("", [], 0, None)
    assert (info.engine.times.plan, info.engine.planner.step_costs, info.chat_format) == (0.0, [], None)
    assert isinstance(info, VerifierInfo)
    service = read_drafter_service_info(drafting.DrafterServiceGetModelInfoResponse())
    assert (service.build, service.last_load, service.verifiers) == ("", None, [])
    drafter = read(Drafter, pool.Drafter())
    assert (drafter.state, drafter.model, drafter.step_seconds, drafter.labels) == ("unknown", None, None, {})
    assert read(Rollout, pool.Rollout()).new.draft_tokens == 0
    stats = read(SpeculationStats, speculation.SpeculationStats(), tokens=3)
    assert (stats.tokens, stats.acceptance, stats.preset, stats.lossless, stats.threshold) == (
        3,
        "coupled",
        None,
        True,
        None,
    )


@given(seconds=st.floats(0, 1e6), rows=st.integers(0, 2**32 - 1))
def test_durations_are_seconds(seconds: float, rows: int) -> None:
    message = pb.GetModelInfoResponse()
    point = message.engine.planner.step_costs.add(rows=rows)
    point.time.FromNanoseconds(round(seconds * 1e9))
    [read_point] = read_verifier_info(message).engine.planner.step_costs
    assert (read_point.rows, read_point.seconds) == (rows, pytest.approx(seconds, abs=1e-9))


def test_what_a_message_has() -> None:
    message = pool.Drafter(state=pool.DRAFTER_STATE_SUSPENDED, labels={"domain": "code"})
    message.model.model_id = "tiny"
    message.response_time.FromMilliseconds(250)
    message.attached_at.FromDatetime(datetime(2024, 5, 6))
    message.last_error.code, message.last_error.message = code_pb2.INTERNAL, "lost"
    found = read(Drafter, message)
    assert (found.state, found.labels, found.response_seconds) == ("suspended", {"domain": "code"}, 0.25)
    assert found.model is not None
    assert (found.model.model_id, found.attached_at) == ("tiny", datetime(2024, 5, 6, tzinfo=UTC))
    assert isinstance(found.last_error, InternalError)


def test_what_is_newer_than_this_sdk() -> None:
    counts = [pb.AcceptanceCount(rule=rule, tokens=rule) for rule in (1, NEWER, 3)]  # type: ignore[arg-type]
    assert [each.rule for each in read_all(AcceptanceCount, counts)] == ["coupled", "typical"]
    calls = pb.ChatFormat(tool_calls=pb.TOOL_CALL_FORMAT_SPELLED)
    calls.spelling.style = NEWER  # type: ignore[assignment]
    found = read(ChatFormat, calls)
    assert (found.tool_calls, found.spelling) == (None, None)
    calls.spelling.style = pb.CALL_ARGUMENT_STYLE_BARE_KEYS
    spelt = read(ChatFormat, calls)
    assert spelt.spelling is not None
    assert (spelt.tool_calls, spelt.spelling.style) == ("spelled", "bare_keys")
    assert read(ChatFormat, pb.ChatFormat(tool_calls=NEWER)).tool_calls is None  # type: ignore[arg-type]


def test_numbers_of_names() -> None:
    numbers = numbers_of(Acceptance, speculation.AcceptanceRule.DESCRIPTOR)
    assert numbers == {"coupled": 1, "rejection": 2, "typical": 3, "threshold": 4}
    assert numbers_of(Literal["auto", "else"], speculation.DraftPlanning.DESCRIPTOR) == {"auto": 1}


@dataclass(frozen=True)
class Side:
    called: Annotated[str, From("name")]
    steps: int = 0
    notes: list[str] = field(default_factory=list)


def test_a_field_that_no_message_has() -> None:
    assert read(Side, pool.RolloutSide(name="a", steps=2), notes=["b"]) == Side("a", 2, ["b"])
    with pytest.raises(AttributeError, match=r"Side\.notes: no field notes in \['RolloutSide'\]"):
        read(Side, pool.RolloutSide())
