"""Services whose keys and values are of another type than the model's."""

from typing import Any

import pytest

from draftwire import Client, ModelMismatchError
from tests.harness.compared import EACH_WAY, Compared
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, sometimes

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"


def test_drafts_change_no_token(
    verifier: ServiceProcess,
    services: Services,
) -> None:
    check_drafts_change_no_token("q8_0", verifier, services)


def check_drafts_change_no_token(
    kv_dtype: str,
    other: ServiceProcess,
    services: Services,
) -> None:
    flags = ("--kv-dtype", kv_dtype)
    verifier, drafter = services.verifier("target", *flags), services.drafter("draft", *flags)
    with Client(verifier.address, timeout=PATIENCE) as client, Client(other.address, timeout=PATIENCE) as others:
        info, other_info = client.model_info(), others.model_info()
        assert (info.kv_dtype, info.bit_exact) == (kv_dtype, True)
        assert other_info.kv_dtype == other_info.dtype == info.dtype
        assert info.fingerprint != other_info.fingerprint and info.numerics != other_info.numerics
        attached = client.drafters.attach(drafter.address, name="one")
        assert attached.model is not None and attached.model.kv_dtype == kv_dtype
        Compared(verifier.address, [PROMPT], EACH_WAY, 40).drafting()


def test_a_cached_prompt_gives_the_same_tokens(services: Services) -> None:
    asked: dict[str, Any] = {"max_tokens": 32, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    with Client(services.verifier("target", "--kv-dtype", "q8_0").address, timeout=PATIENCE) as client:
        computed = client.generate(20 * PROMPT, prefix_cache=False, **asked)
        client.generate(20 * PROMPT, **asked)
        cached = client.generate(20 * PROMPT, **asked)
    assert (computed.usage.cached_tokens, cached.usage.cached_tokens > 0) == (0, True)
    assert (cached.token_ids, cached.text) == (computed.token_ids, computed.text)


def test_a_request_goes_on_at_no_verifier_with_another_type(verifier: ServiceProcess, services: Services) -> None:

    def play() -> bool:
        lost = services.verifier("target", "--kv-dtype", "q8_0")
        addresses = [lost.address, f"{verifier.address}?weight=0"]
        with (
            Client(addresses, timeout=PATIENCE) as client,
            client.stream(PROMPT, max_tokens=800, ignore_eos=True, temperature=1.0, seed=3) as stream,
        ):
            next(stream)
            lost.kill()
            try:
                for _ in stream:
                    pass
            except ModelMismatchError:
                return True
        assert not stream.result.resumes
        return False

    sometimes(play, "it was under way")


@pytest.mark.slow
class TestFloats:
    def test_drafts_change_no_token(
        self,
        verifier: ServiceProcess,
        services: Services,
    ) -> None:
        check_drafts_change_no_token("float16", verifier, services)
