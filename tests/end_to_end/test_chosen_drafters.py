"""A verifier that chooses its drafters, as a process."""

import pytest

from draftwire import Client
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_it_says_what_it_has_chosen_and_ends_at_once(services: Services) -> None:
    """The bundled target is too small for a model to pay."""
    verifier = services.verifier("target", "--drafter", "auto", program="verifier_service")
    with Client(verifier.address, timeout=PATIENCE) as client:
        assert client.generate("def f(", max_tokens=4).token_ids

        def chosen() -> object:
            return next((each for each in verifier.events() if each["event"] == "drafters chosen"), None)

        eventually(chosen, "it has chosen", patience=LONG_PATIENCE)
        assert [each.address for each in client.drafters.list()] == ["local:ngram"]
    told = chosen()
    assert isinstance(told, dict)
    assert told["drafters"] == ["local:ngram"]
    assert "SmolLM2-135M-Instruct: the target is too small for it to pay" in told["reasons"][0]
    assert verifier.stop() == 0


def test_it_ends_while_it_chooses(services: Services) -> None:
    verifier = services.verifier("target", "--drafter", "auto", program="verifier_service").serving()
    assert verifier.stop() == 0
    assert not [each for each in verifier.events() if each.get("level") == "error"]
