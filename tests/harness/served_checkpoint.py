"""The check that a pair of served checkpoints is drafted for without changing an output."""

from collections.abc import Sequence
from typing import Any

from draftwire import Client, Speculation
from tests.harness.services.service_process import ServiceProcess
from tests.harness.waiting import sometimes

PROMPTS = ("def read_config(path):\n", "class Stack:\n    def push(self, item):\n")
_TEMPERATURES = (0.0, 0.9)


def assert_drafts_change_nothing(
    client: Client, drafter: ServiceProcess, options: dict[str, Any], prompts: Sequence[str] = PROMPTS
) -> None:
    """Compares outputs before and after a drafter is attached, and waits until some of its tokens were accepted.

    options: of all requests.
    """
    plain = {
        (prompt, temperature): client.generate(
            prompt, temperature=temperature, speculation=Speculation(enabled=False), **options
        )
        for prompt in prompts
        for temperature in _TEMPERATURES
    }
    client.drafters.attach(drafter.address, name="one")

    def drafted() -> int:
        accepted = 0
        for (prompt, temperature), expected in plain.items():
            found = client.generate(
                prompt, temperature=temperature, speculation=Speculation(planning="always"), **options
            )
            assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
            accepted += found.speculation.accepted_tokens
        return accepted

    sometimes(drafted, "drafts are accepted")
