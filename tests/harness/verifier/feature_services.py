"""Drafter services that read features, at a verifier in this process."""

from drafter_service.models.model_changes import ModelChanges
from drafter_service.servicer import DrafterServicer
from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from tests.harness.services.in_process_verifier import InProcessVerifier

PROMPTS = [[5, 9, 14, 23, 42, 7], [3, 4], [60 + at % 7 for at in range(150)]]
REMOTE = "eagle:1"
FORCED = SpeculationOptions(planning=DraftPlanning.DRAFT_PLANNING_ALWAYS)


def listen(verifier: InProcessVerifier, address: str, changes: ModelChanges) -> None:
    """Lets a drafter service listen at an address of the verifier's network."""
    verifier.network.listen(address, DrafterServicer(changes, 4).converse)
    assert changes.serving.mapping is not None
    verifier.network.weights[address] = b"".join(changes.serving.mapping.weight_bytes(1000))
