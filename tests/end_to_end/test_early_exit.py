"""The target drafts for itself, inside the verifier and in a service of its first layers."""

from typing import Any

import pytest

from draftwire import Client, Speculation
from tests.harness.compared import Compared, speculating
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import sometimes

pytestmark = pytest.mark.processes

PROMPT = "def parse(line):\n    "
WITHIN = "local:early_exit?layers=2"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "sampled": {"temperature": 0.8, "ignore_eos": True},
}


def test_from_within_and_from_a_service(verifier: ServiceProcess, client: Client, services: Services) -> None:
    check_drafts_and_swaps(verifier, client, services, "sampled", 60)


def check_drafts_and_swaps(
    verifier: ServiceProcess, client: Client, services: Services, sampling: str, tokens: int
) -> None:
    service = services.drafter("target", "--layers", "2")
    compared = Compared(verifier.address, [PROMPT], SAMPLINGS, tokens, seed=5)
    remote = client.drafters.attach(service.address, "remote")
    assert remote.model is not None and remote.model.parameters < client.model_info().parameters

    def drafted() -> int:
        return compared(speculating(Speculation(drafter="remote", planning="always")), sampling).draft_tokens

    sometimes(drafted, "the service drafts")
    client.drafters.detach("remote")
    compared.swapping(sampling, service.address, WITHIN)


@pytest.mark.slow
class TestLongerTexts:
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_from_within_and_from_a_service(
        self, verifier: ServiceProcess, client: Client, services: Services, sampling: str
    ) -> None:
        check_drafts_and_swaps(verifier, client, services, sampling, 120)
