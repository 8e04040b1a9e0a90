"""Random interleavings of everything that happens between a verifier and its drafters.

`pytest tests/protocol --hypothesis-profile=long --timeout=0` plays many more.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from speculative_engine.planning import drafting_account
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.protocol_machine import ProtocolMachine


@pytest.mark.timeout(300)  # shrinking a failure takes a while
def test_the_protocol_keeps_its_promises(checkpoints: Checkpoints, reference: PlainReference) -> None:
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: ProtocolMachine(checkpoints, reference, seen),
        settings=settings(suppress_health_check=list(HealthCheck)),
    )
    print(dict(sorted(seen.items())))
    for what in (
        "accepted",
        "nodes compared",
        "local nodes compared",
        "moved while running",
        "duplicates",
        "reordered",
        "lies",
    ):
        assert seen[what], f"no example had any: {what}"


@pytest.mark.timeout(300)
def test_also_while_drafters_are_paused(
    checkpoints: Checkpoints, reference: PlainReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting_account, "ALLOWANCE", 0.5)
    seen: Counter[str] = Counter()
    run_state_machine_as_test(
        lambda: ProtocolMachine(checkpoints, reference, seen, message_seconds=1.0),  # whatever they bring
        settings=settings(suppress_health_check=list(HealthCheck), max_examples=60),
    )
    for what in ("accepted", "untold", "nodes compared", "moved while running"):
        assert seen[what], f"no example had any: {what}"
