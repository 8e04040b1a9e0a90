"""Services whose target and draft models have recurrent layers: no token changes while drafters come and go."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from draftwire import AsyncClient, Client, Speculation
from draftwire_tools.check.comparison import Around
from tests.harness.compared import Compared
from tests.harness.kills import KilledDrafters
from tests.harness.models.hybrid_checkpoint import write_hybrid
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE

pytestmark = pytest.mark.processes

PROMPT = " ".join(f"w{(7 * index) % 97}" for index in range(40))
PROMPTS = [PROMPT, "w5", " ".join(PROMPT.split()[:17])]
GOOD, OTHER = "good", "other"
SAMPLED: dict[str, dict[str, Any]] = {"sampled": {"ignore_eos": True, "temperature": 0.8}}


def write_models(place: Path, name: str) -> dict[str, Path]:
    """A target, a draft model much like it, and one of another kind."""
    other = {"Qwen3_5": "Lfm2", "Lfm2": "FalconH1"}[name]
    return {
        "target": write_hybrid(place / "target", name),
        GOOD: write_hybrid(place / GOOD, name, noise=0.05),
        OTHER: write_hybrid(place / OTHER, other, seed=1),
    }


def check_drafters_change_no_token(
    verifier: ServiceProcess, addresses: list[str], mortal: Callable[[], ServiceProcess], tokens: int, long: int
) -> None:
    """Each draft model drafts for a batch, drafters take turns in a request, and one is killed in another."""
    compared = Compared(verifier.address, PROMPTS, SAMPLED, tokens)
    whole = Compared(verifier.address, [PROMPT], SAMPLED, long, seed=9)
    with Client(verifier.address, timeout=LONG_PATIENCE) as client:
        assert client.model_info().bit_exact
        for address in [each for each in addresses if not each.startswith("local:")]:
            client.drafters.attach(address)
            compared.drafting(Speculation(drafter=address, planning="always"))
            client.drafters.detach(address)
    whole.swapping("sampled", *addresses)
    killed: list[KilledDrafters] = []

    def killing(client: AsyncClient) -> Around:
        killed.append(KilledDrafters(client, mortal, spares=0))
        return killed[0].around

    whole(None, "sampled", grouped=killing)
    assert killed[0].kills == 1


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"), "Qwen3_5")


@pytest.fixture(scope="module")
def pair(models: dict[str, Path], module_services: Services) -> tuple[ServiceProcess, ServiceProcess]:
    """A verifier, and a drafter that one test kills."""
    verifier, drafter = module_services.verifier(models["target"]), module_services.drafter(models[GOOD])
    return verifier.serving(), drafter.serving()


def test_drafters_change_no_token(pair: tuple[ServiceProcess, ServiceProcess]) -> None:
    verifier, drafter = pair
    check_drafters_change_no_token(verifier, [drafter.address, "local:ngram"], lambda: drafter, 16, 44)


@pytest.mark.slow
class TestLongerTexts:
    @pytest.mark.parametrize("name", ["Qwen3_5", "Lfm2"])
    def test_drafters_change_no_token(self, tmp_path: Path, services: Services, name: str) -> None:
        models = write_models(tmp_path, name)
        verifier = services.verifier(str(models["target"]))
        addresses = [services.drafter(str(models[each])).address for each in (GOOD, OTHER)]
        mortal = partial(services.drafter, str(models[GOOD]))
        check_drafters_change_no_token(verifier, addresses, mortal, 48, 300)
