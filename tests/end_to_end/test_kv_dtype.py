"""Services whose keys and values are in 8 bits."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from draftwire import Client, Speculation
from tests.harness.waiting import PATIENCE, sometimes

if TYPE_CHECKING:
    from tests.harness.services import RunningService

PROMPT = "def read_config(path):\n"


def test_drafts_change_no_token(
    start_verifier: Callable[..., "RunningService"], start_drafter: Callable[..., "RunningService"]
) -> None:
    flags = ("--kv-dtype", "q8_0")
    verifier, drafter, other = (
        start_verifier("target", *flags),
        start_drafter("draft", *flags),
        start_verifier("target"),
    )
    with Client(verifier.address, timeout=PATIENCE) as client, Client(other.address, timeout=PATIENCE) as others:
        info, other_info = client.model_info(), others.model_info()
        assert (info.kv_dtype, info.bit_exact) == ("q8_0", True)
        assert other_info.kv_dtype == other_info.dtype == info.dtype
        assert info.fingerprint != other_info.fingerprint and info.numerics != other_info.numerics
        plain = client.generate(
            PROMPT, max_tokens=64, ignore_eos=True, temperature=0.8, seed=3, speculation=Speculation(enabled=False)
        )
        client.drafters.attach(drafter.address, name="one")
        [attached] = client.drafters.list()
        assert attached.model is not None and attached.model.kv_dtype == "q8_0"

        def drafted() -> int:
            found = client.generate(PROMPT, max_tokens=64, ignore_eos=True, temperature=0.8, seed=3)
            assert (found.token_ids, found.text) == (plain.token_ids, plain.text)
            return found.speculation.accepted_tokens

        sometimes(drafted, "drafts are accepted")
