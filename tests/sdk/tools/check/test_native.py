"""The check of a verifier: what it asks for, without one."""

from dataclasses import replace

from grpc import StatusCode

from draftwire import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.from_message import read
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_tools.check.distribution import run_distribution_tests
from draftwire_tools.check.drafters import PLAIN
from draftwire_tools.check.native import sampled_ways
from draftwire_tools.check.prompts import CheckPrompt
from tests.harness.stand_ins.fake_verifier import FakeVerifier, drafter_message, rich_status
from tests.harness.waiting import PATIENCE


def test_the_rule_of_rejection_is_for_trusted_drafters_that_do_not_translate() -> None:
    messages = [drafter_message(name, f"{name}:1") for name in ("same", "translating", "distrusted")]
    messages[1].model.CopyFrom(ModelInfo(draft_tokenizer_sha256="ab"))
    found = [replace(read(Drafter, message), trusted=message.name != "distrusted") for message in messages]
    ways = dict(sampled_ways(found))
    assert ways["all drafters"].drafters == ["same", "translating", "distrusted"]
    assert ways["all trusted drafters, rule of rejection"].drafters == ["same"]
    assert list(dict(sampled_ways(found[1:]))) == ["plain", "all drafters"]
    assert list(dict(sampled_ways(found, rejection=False))) == ["plain", "all drafters"]


async def test_a_verifier_without_room_for_all_draws(verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.RESOURCE_EXHAUSTED, "no room", "AT_CAPACITY"))
    async with AsyncClient(verifier.address, timeout=PATIENCE) as client:
        prompt = CheckPrompt("code", "def f")
        tests = await run_distribution_tests(client, prompt, [("plain", PLAIN)], 4, lambda: False)
    assert [(each.seeds, each.tokens) for each in tests] == [(3, 24), (4, 32)]
