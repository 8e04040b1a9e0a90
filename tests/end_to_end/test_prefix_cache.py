"""The prefix cache of a real verifier, through the SDK."""

import pytest

from draftwire import Client
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE

pytestmark = pytest.mark.processes

PROMPT = [300 + position % 700 for position in range(240)]
COUNT = 24


def test_a_prompt_is_computed_once(client: Client) -> None:
    before = client.model_info().engine.prefix_cache
    plain = client.generate(PROMPT, max_tokens=COUNT, seed=3, ignore_eos=True, prefix_cache=False)
    first = client.generate(PROMPT, max_tokens=COUNT, seed=3, ignore_eos=True)
    second = client.generate(PROMPT, max_tokens=COUNT, seed=3, ignore_eos=True)
    turn = client.generate([*PROMPT, *first.token_ids, 5, 6], max_tokens=2, seed=3)
    assert plain.token_ids == first.token_ids == second.token_ids
    found = [each.usage.cached_tokens for each in (plain, first, second, turn)]
    assert found == [0, 0, len(PROMPT) - 1, len(PROMPT) + COUNT - 1]
    after = client.model_info().engine
    assert after.prefix_cache.hit_tokens - before.hit_tokens == sum(found)
    assert after.prefix_cache.cached_slots >= len(PROMPT) + COUNT - 1
    batch = client.generate_batch([[7, *PROMPT]] * 4, seed=[1, 2, 3, 4], max_tokens=4, temperature=1.0)
    assert sorted(each.usage.cached_tokens for each in batch) == [0] + [len(PROMPT)] * 3


def test_it_can_be_turned_off(services: Services, verifier: ServiceProcess) -> None:
    without = services.verifier("target", "--no-prefix-cache")
    outputs = []
    for address in (verifier.address, without.address):
        with Client(address, timeout=PATIENCE) as client:
            outputs.append([client.generate(PROMPT, max_tokens=8, seed=5) for _ in range(2)])
    assert len({tuple(each.token_ids) for pair in outputs for each in pair}) == 1
    assert [each.usage.cached_tokens for each in outputs[1]] == [0, 0]
