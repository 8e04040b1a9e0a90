"""`draftwire check-drafter` against the drafter service with bundled models."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.checkout import MODELS
from tests.harness.command import Command
from tests.harness.engine.engines import tiny_model
from tests.harness.models.dflash_checkpoints import write_dflash
from tests.harness.models.eagle_checkpoints import write_eagle
from tests.harness.services.services import Services

pytestmark = pytest.mark.processes


Check = Callable[[str], dict[str, str]]
"""The type of `check(address)`, which returns the outcome of each rule."""


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    run = Command(monkeypatch, capsys)

    def outcomes(address: str) -> dict[str, str]:
        done = run("check-drafter", address, "--json")
        assert done.out, done.err
        rules = json.loads(done.out)["rules"]
        assert [each for each in rules if each["outcome"] == "failed"] == []
        return {each["rule"]: each["outcome"] for each in rules}

    return outcomes


def not_passed(found: dict[str, str]) -> dict[str, str]:
    return {rule: outcome for rule, outcome in found.items() if outcome != "passed"}


def about_features(found: dict[str, str]) -> set[str]:
    """The rules for drafters that read features."""
    return {rule for rule in found if rule.startswith("features.")} - {"features.unasked"}


def test_the_drafter_service_keeps_every_rule(check: Check, good_drafter: str) -> None:
    found = check(good_drafter)
    assert not_passed(found) == dict.fromkeys(about_features(found), "skipped")


@pytest.mark.slow
class TestOtherDrafters:
    @pytest.mark.parametrize(("write", "dtype"), [(write_eagle, "int8"), (write_dflash, "auto")])
    def test_a_drafter_that_reads_features_keeps_every_rule(
        self, check: Check, services: Services, tmp_path: Path, write: Callable[[Path], Path], dtype: str
    ) -> None:
        model, target = write(tmp_path / "drafter"), tmp_path / "target"
        tiny_model("Llama").save_pretrained(target)
        flags = ("--target", str(target), "--dtype", "float32", "--feature-dtype", dtype)
        drafter = services.drafter(str(model), *flags)
        found = check(drafter.address)
        left_out = {"features.unasked", "draws.reported", "handshake.tokenizer", "handshake.other_tokenizer"}
        assert not_passed(found) == dict.fromkeys(left_out, "skipped"), "its checkpoint brings no tokenizer"

    def test_a_drafter_that_translates(self, check: Check, services: Services) -> None:
        drafter = services.drafter("draft-other", "--target-tokenizer", str(MODELS / "target"))
        found = check(drafter.address)
        assert not_passed(found) == dict.fromkeys({"draws.reported", *about_features(found)}, "skipped")
