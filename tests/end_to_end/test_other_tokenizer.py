"""A draft model with another tokenizer, in real services with the bundled models."""

from typing import Any

import pytest

from draftwire import Client, Speculation
from draftwire.errors import DraftwireError
from tests.harness.checkout import MODELS
from tests.harness.services.services import Services
from tests.harness.waiting import sometimes

pytestmark = pytest.mark.processes

PLAIN = Speculation(enabled=False)
PROMPT = "def naïve_éval(self, 文字列):\n"


def test_it_drafts_and_is_swapped_within_a_request(client: Client, good_drafter: str, services: Services) -> None:
    check_drafts_and_swaps(client, good_drafter, services, temperature=0.8, tokens=100)


def check_drafts_and_swaps(
    client: Client, good_drafter: str, services: Services, temperature: float, tokens: int
) -> None:
    wanted: dict[str, Any] = {"max_tokens": tokens, "temperature": temperature, "seed": 5, "ignore_eos": True}
    plain = client.generate(PROMPT, **wanted, speculation=PLAIN)
    service = services.drafter("draft-other", "--target-tokenizer", str(MODELS / "target"))
    client.drafters.attach(service.address, name="other")

    def drafted() -> int:
        alone = client.generate(PROMPT, speculation=Speculation(planning="always"), **wanted)
        assert alone.token_ids == plain.token_ids
        return alone.speculation.draft_tokens + alone.speculation.stale_nodes  # all of its drafts may come too late

    sometimes(drafted, "it drafts")
    name = "other"

    def swapped() -> bool:
        """Swaps there and back within one request."""
        nonlocal name
        found: list[int] = []
        moved, swaps = 0, [(name, good_drafter), (good_drafter, service.address)]
        for chunk in client.stream(PROMPT, **wanted):
            found += chunk.token_ids
            if swaps and len(found) > tokens // 4 * (3 - len(swaps)):
                moved += client.drafters.swap(*swaps.pop(0)).moved_sequences
        for swap in swaps:
            client.drafters.swap(*swap)
        name = service.address
        assert found == plain.token_ids
        return moved == 2

    sometimes(swapped, "it is swapped twice")


def test_without_translation_it_is_refused_and_both_are_named(client: Client, services: Services) -> None:
    service = services.drafter("draft-other")
    with pytest.raises(DraftwireError) as refused:
        client.drafters.attach(service.address)
    assert "draft-other" in str(refused.value)
    assert client.model_info().tokenizer_sha256 in str(refused.value)


@pytest.mark.slow
class TestLongerTexts:
    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_it_drafts_and_is_swapped_within_a_request(
        self, client: Client, good_drafter: str, services: Services, temperature: float
    ) -> None:
        check_drafts_and_swaps(client, good_drafter, services, temperature, tokens=160)
