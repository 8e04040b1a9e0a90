"""The check of a verifier: what it asks for, without one."""

from dataclasses import replace

from draftwire._types.drafter import Drafter
from draftwire._types.from_message import read
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_tools.check.native import sampled_ways
from tests.harness.stand_ins.fake_verifier import drafter_message


def test_the_rule_of_rejection_is_for_trusted_drafters_that_do_not_translate() -> None:
    messages = [drafter_message(name, f"{name}:1") for name in ("same", "translating", "distrusted")]
    messages[1].model.CopyFrom(ModelInfo(draft_tokenizer_sha256="ab"))
    found = [replace(read(Drafter, message), trusted=message.name != "distrusted") for message in messages]
    ways = dict(sampled_ways(found))
    assert ways["all drafters"].drafters == ["same", "translating", "distrusted"]
    assert ways["all trusted drafters, rule of rejection"].drafters == ["same"]
    assert list(dict(sampled_ways(found[1:]))) == ["plain", "all drafters"]
    assert list(dict(sampled_ways(found, rejection=False))) == ["plain", "all drafters"]
