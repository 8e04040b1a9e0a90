"""Services whose target and draft models have recurrent layers: no token changes while drafters come and go."""

from pathlib import Path
from typing import Any

import pytest

from draftwire import Client, Speculation
from tests.harness.models.hybrid_checkpoint import write_hybrid
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, sometimes

pytestmark = pytest.mark.processes

PROMPT = " ".join(f"w{(7 * index) % 97}" for index in range(40))
PROMPTS = [PROMPT, "w5", " ".join(PROMPT.split()[:17])]
GOOD, OTHER = "good", "other"
FORCED = Speculation(planning="always")


def options(tokens: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.8}


def write_models(place: Path, name: str) -> dict[str, Path]:
    """A target, a draft model much like it, and one of another kind."""
    other = {"Qwen3_5": "Lfm2", "Lfm2": "FalconH1"}[name]
    return {
        "target": write_hybrid(place / "target", name),
        GOOD: write_hybrid(place / GOOD, name, noise=0.05),
        OTHER: write_hybrid(place / OTHER, other, seed=1),
    }


def check_drafters_change_no_token(
    models: dict[str, Path],
    services: Services,
    tokens: int,
    long: int,
) -> None:
    verifier = services.verifier(str(models["target"]))
    drafters = [services.drafter(str(models[name])) for name in (GOOD, OTHER)]
    addresses = [drafter.address for drafter in drafters]
    with Client(verifier.address, timeout=LONG_PATIENCE) as client:
        assert client.model_info().bit_exact
        plain = [
            client.generate(
                prompt, seed=seed, prefix_cache=False, speculation=Speculation(enabled=False), **options(tokens)
            )
            for seed, prompt in enumerate(PROMPTS)
        ]
        whole = client.generate(PROMPT, seed=9, speculation=Speculation(enabled=False), **options(long)).token_ids
        for address in addresses:
            client.drafters.attach(address)

            def drafted() -> int:
                found = client.generate_batch(
                    PROMPTS, seed=list(range(len(PROMPTS))), speculation=FORCED, **options(tokens)
                )
                assert [each.token_ids for each in found] == [each.token_ids for each in plain]
                return sum(each.speculation.accepted_tokens for each in found)

            sometimes(drafted, "draft tokens are accepted")
            client.drafters.detach(address)
        client.drafters.attach(addresses[0])

        def swapped() -> int:
            """Swaps the drafters while a request runs; returns how often it moved."""
            found: list[int] = []
            moved = swaps = 0
            with client.stream(PROMPT, seed=9, speculation=FORCED, **options(long)) as stream:
                for chunk in stream:
                    found += chunk.token_ids
                    if len(found) >= 20 * (swaps + 1):
                        moved += client.drafters.swap(*addresses).moved_sequences
                        swaps += 1
                        addresses.reverse()
            assert found == whole
            return moved

        sometimes(swapped, "the request moves")

        [attached] = client.drafters.list()
        with client.stream(PROMPT, seed=9, speculation=FORCED, **options(long)) as stream:
            found = [*next(stream).token_ids]
            for drafter in drafters:
                if drafter.address == attached.address:
                    drafter.kill()
            for chunk in stream:
                found += chunk.token_ids
        assert found == whole


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_models(tmp_path_factory.mktemp("models"), "Qwen3_5")


@pytest.fixture(scope="module")
def pair(models: dict[str, Path], module_services: Services) -> tuple[ServiceProcess, ServiceProcess]:
    """A verifier, and a drafter that one test kills."""
    verifier, drafter = module_services.verifier(models["target"]), module_services.drafter(models[GOOD])
    return verifier.serving(), drafter.serving()


def test_drafters_change_no_token(pair: tuple[ServiceProcess, ServiceProcess]) -> None:
    """One drafts, gives way to another in the middle of a request, comes back and is killed."""
    verifier, drafter = pair
    asked = options(36) | {"seed": 9}
    with Client(verifier.address, timeout=PATIENCE) as client:
        plain = client.generate(PROMPT, prefix_cache=False, speculation=Speculation(enabled=False), **asked)
        client.drafters.attach(drafter.address)
        sometimes(
            lambda: client.generate(PROMPT, speculation=FORCED, **asked).speculation.accepted_tokens, "it drafts well"
        )
        events = [
            lambda: client.drafters.swap(drafter.address, "local:ngram"),
            lambda: client.drafters.swap("local:ngram", drafter.address),
            drafter.kill,
        ]
        tokens: list[int] = []
        with client.stream(PROMPT, speculation=FORCED, **asked) as stream:
            for chunk in stream:
                tokens += chunk.token_ids
                if events and len(tokens) > 8 * (4 - len(events)):
                    events.pop(0)()
        assert not events
        assert tokens == plain.token_ids


@pytest.mark.slow
class TestLongerTexts:
    @pytest.mark.parametrize("name", ["Qwen3_5", "Lfm2"])
    def test_drafters_change_no_token(
        self,
        tmp_path: Path,
        services: Services,
        name: str,
    ) -> None:
        check_drafters_change_no_token(write_models(tmp_path, name), services, 48, 300)
