"""Services whose target and draft models have recurrent layers: no token changes while drafters come and go."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from draftwire import Client, Speculation
from tests.harness.models.hybrid_checkpoint import write_hybrid
from tests.harness.waiting import PATIENCE, sometimes

if TYPE_CHECKING:
    from tests.harness.services import RunningService

pytestmark = pytest.mark.slow

PROMPT = " ".join(f"w{(7 * index) % 97}" for index in range(40))
PROMPTS = [PROMPT, "w5", " ".join(PROMPT.split()[:17])]
LONG = 300
GOOD, OTHER = "good", "other"


def options(tokens: int = 48) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.8}


@pytest.fixture(scope="module", params=["Qwen3_5", "Lfm2"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, a draft model much like it, and one of another kind."""
    place = tmp_path_factory.mktemp("hybrid")
    other = {"Qwen3_5": "Lfm2", "Lfm2": "FalconH1"}[request.param]
    return {
        "target": write_hybrid(place / "target", request.param),
        GOOD: write_hybrid(place / GOOD, request.param, noise=0.05),
        OTHER: write_hybrid(place / OTHER, other, seed=1),
    }


def test_drafters_change_no_token(
    models: dict[str, Path],
    start_verifier: Callable[..., "RunningService"],
    start_drafter: Callable[..., "RunningService"],
) -> None:
    verifier = start_verifier(str(models["target"]))
    drafters = [start_drafter(str(models[name])) for name in (GOOD, OTHER)]
    addresses = [drafter.address for drafter in drafters]
    with Client(verifier.address, timeout=PATIENCE) as client:
        assert client.model_info().bit_exact
        plain = [
            client.generate(prompt, seed=seed, prefix_cache=False, speculation=Speculation(enabled=False), **options())
            for seed, prompt in enumerate(PROMPTS)
        ]
        long = client.generate(PROMPT, seed=9, speculation=Speculation(enabled=False), **options(LONG)).token_ids
        for address, least in zip(addresses, (0.25, 0.0), strict=True):
            client.drafters.attach(address)

            def drafted(least: float = least) -> bool:
                """Whether nodes were verified, and of a model much like the target many were accepted."""
                found = client.generate_batch(PROMPTS, seed=list(range(len(PROMPTS))), **options())
                assert [each.token_ids for each in found] == [each.token_ids for each in plain]
                verified = sum(each.speculation.draft_tokens for each in found)
                return verified > 0 and sum(each.speculation.accepted_tokens for each in found) >= least * verified

            sometimes(drafted, "the drafter pays")
            client.drafters.detach(address)
        client.drafters.attach(addresses[0])

        def swapped() -> int:
            """Swaps the drafters while a request runs; returns how often it moved."""
            tokens: list[int] = []
            moved = swaps = 0
            with client.stream(PROMPT, seed=9, **options(LONG)) as stream:
                for chunk in stream:
                    tokens += chunk.token_ids
                    if len(tokens) >= 20 * (swaps + 1):
                        moved += client.drafters.swap(*addresses).moved_sequences
                        swaps += 1
                        addresses.reverse()
            assert tokens == long
            return moved

        sometimes(swapped, "the request moves")

        [attached] = client.drafters.list()
        with client.stream(PROMPT, seed=9, **options(LONG)) as stream:
            tokens = [*next(stream).token_ids]
            for drafter in drafters:
                if drafter.address == attached.address:
                    drafter.kill()
            for chunk in stream:
                tokens += chunk.token_ids
        assert tokens == long
