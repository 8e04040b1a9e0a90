"""A draft model with another tokenizer, in real services with the bundled models."""

from typing import Any

import pytest

from draftwire import Client, Speculation
from draftwire.errors import DraftwireError
from tests.harness.checkout import MODELS
from tests.harness.compared import Compared, speculating
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import sometimes

pytestmark = pytest.mark.processes

PROMPT = "def naïve_éval(self, 文字列):\n"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "ignore_eos": True},
    "sampled": {"temperature": 0.8, "ignore_eos": True},
}


def test_it_drafts_and_is_swapped_within_a_request(
    verifier: ServiceProcess, client: Client, good_drafter: str, services: Services
) -> None:
    check_drafts_and_swaps(verifier, client, good_drafter, services, "sampled", 100)


def check_drafts_and_swaps(
    verifier: ServiceProcess, client: Client, good_drafter: str, services: Services, sampling: str, tokens: int
) -> None:
    service = services.drafter("draft-other", "--target-tokenizer", str(MODELS / "target"))
    compared = Compared(verifier.address, [PROMPT], SAMPLINGS, tokens, seed=5)
    client.drafters.attach(service.address, name="other")

    def drafted() -> int:
        return compared(speculating(Speculation(drafter="other", planning="always")), sampling).draft_tokens

    sometimes(drafted, "it drafts")
    client.drafters.detach("other")
    compared.swapping(sampling, service.address, good_drafter)


def test_without_translation_it_is_refused_and_both_are_named(client: Client, services: Services) -> None:
    service = services.drafter("draft-other")
    with pytest.raises(DraftwireError) as refused:
        client.drafters.attach(service.address)
    assert "draft-other" in str(refused.value)
    assert client.model_info().tokenizer_sha256 in str(refused.value)


@pytest.mark.slow
class TestLongerTexts:
    @pytest.mark.parametrize("sampling", SAMPLINGS)
    def test_it_drafts_and_is_swapped_within_a_request(
        self, verifier: ServiceProcess, client: Client, good_drafter: str, services: Services, sampling: str
    ) -> None:
        check_drafts_and_swaps(verifier, client, good_drafter, services, sampling, 160)
