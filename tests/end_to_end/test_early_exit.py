"""The target drafts for itself, from within and from a service of its first layers."""

from typing import TYPE_CHECKING, Any

import pytest

from draftwire import Client

if TYPE_CHECKING:
    from tests.end_to_end.conftest import RunningService, StartService

PROMPT = "def parse(line):\n    "
WITHIN = "local:early_exit?layers=2"


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_from_within_and_from_a_service(
    client: Client, verifier: "RunningService", start_drafter: "StartService", options: dict[str, Any]
) -> None:
    service = start_drafter("target", "--layers", "2")
    plain = client.generate(PROMPT, max_tokens=120, ignore_eos=True, **options)
    client.drafters.attach(service.address, "remote")
    remote = client.generate(PROMPT, max_tokens=120, ignore_eos=True, **options)
    tokens: list[int] = []
    swaps = [("remote", WITHIN), (WITHIN, service.address)]
    for chunk in client.stream(PROMPT, max_tokens=120, ignore_eos=True, **options):
        tokens += chunk.token_ids
        if swaps and len(tokens) > 10:
            client.drafters.swap(*swaps.pop(0))
    assert remote.token_ids == tokens == plain.token_ids
    assert remote.speculation.draft_tokens + remote.speculation.stale_nodes > 0
    assert not swaps
    drafter = next(each for each in client.drafters.list() if each.address == service.address)
    assert drafter.model is not None and drafter.model.parameters < client.model_info().parameters
