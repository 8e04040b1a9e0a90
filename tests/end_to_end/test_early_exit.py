"""The target drafts for itself, inside the verifier and in a service of its first layers."""

from typing import Any

import pytest

from draftwire import Client, Speculation
from tests.harness.services.services import Services
from tests.harness.waiting import sometimes

pytestmark = pytest.mark.processes

PROMPT = "def parse(line):\n    "
WITHIN = "local:early_exit?layers=2"


def test_from_within_and_from_a_service(client: Client, services: Services) -> None:
    check_drafts_and_swaps(client, services, max_tokens=60, temperature=0.8, seed=5)


def check_drafts_and_swaps(client: Client, services: Services, **options: Any) -> None:
    service = services.drafter("target", "--layers", "2")
    plain = client.generate(PROMPT, ignore_eos=True, **options)
    client.drafters.attach(service.address, "remote")

    def drafted() -> int:
        remote = client.generate(PROMPT, ignore_eos=True, speculation=Speculation(planning="always"), **options)
        assert remote.token_ids == plain.token_ids
        return remote.speculation.draft_tokens + remote.speculation.stale_nodes

    sometimes(drafted, "the service drafts")
    name = "remote"

    def swapped() -> bool:
        """Swaps there and back within one request."""
        nonlocal name
        tokens: list[int] = []
        moved, swaps = 0, [(name, WITHIN), (WITHIN, service.address)]
        for chunk in client.stream(PROMPT, ignore_eos=True, **options):
            tokens += chunk.token_ids
            if swaps and len(tokens) > 10:
                moved += client.drafters.swap(*swaps.pop(0)).moved_sequences
        for swap in swaps:
            client.drafters.swap(*swap)
        name = service.address
        assert tokens == plain.token_ids
        return moved == 2

    sometimes(swapped, "it is swapped twice")
    (drafter,) = client.drafters.list()
    assert drafter.model is not None and drafter.model.parameters < client.model_info().parameters


@pytest.mark.slow
class TestLongerTexts:
    @pytest.mark.parametrize(
        "sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"]
    )
    def test_from_within_and_from_a_service(self, client: Client, services: Services, sampling: dict[str, Any]) -> None:
        check_drafts_and_swaps(client, services, max_tokens=120, **sampling)
