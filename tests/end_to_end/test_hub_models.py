"""Hub models: the operator's are fetched and served; a caller's are refused unless a setting allows them."""

from __future__ import annotations

from pathlib import Path

import pytest

import draftwire
from draftwire import Client
from tests.harness.checkout import MODELS
from tests.harness.services.services import Services
from tests.harness.stand_ins.hub_server import serving_hub
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

REFUSED = "models of the hub are not fetched for callers without --allow-hub-models"


@pytest.mark.parametrize("address", ["local:draft?model=lab/draft", "local:draft?model=hf://lab/draft"])
def test_a_caller_may_not_name_one(client: Client, address: str) -> None:
    client.drafters.attach("local:ngram", name="old")
    with pytest.raises(draftwire.DraftwireError, match=REFUSED):
        client.drafters.attach(address, name="new")
    with pytest.raises(draftwire.DraftwireError, match=REFUSED):
        client.drafters.swap("old", address)
    assert [drafter.name for drafter in client.drafters.list()] == ["old"]


@pytest.mark.slow
class TestAHub:
    def test_who_may_name_a_model_of_it(
        self, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lab = tmp_path / "hub" / "lab"
        lab.mkdir(parents=True)
        for name in ("target", "draft", "draft-early"):
            (lab / name).symlink_to(MODELS / name)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        with serving_hub(tmp_path / "hub") as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            service = services.start(
                "verifier_service",
                "--model",
                "lab/target",
                "--threads",
                "1",
                "--drafter",
                "local:draft?model=hf://lab/draft",
                hub=True,
            )
            try:
                with Client(service.address) as client:
                    assert client.model_info().model_id == "lab/target"
                    assert client.generate("def f", max_tokens=8, seed=1).usage.completion_tokens == 8
                    assert [drafter.address for drafter in client.drafters.list()] == [
                        "local:draft?model=hf%3A//lab/draft"
                    ]
                    eventually(
                        lambda: [each.state for each in client.drafters.list()] == ["ready"], "its model is loaded"
                    )
                    asked = len(hub.requests)
                    with pytest.raises(draftwire.DraftwireError, match=REFUSED):
                        client.drafters.attach("local:draft?model=lab/draft-early", name="early")
                    with pytest.raises(draftwire.DraftwireError, match=REFUSED):
                        client.drafters.swap("local:draft?model=hf%3A//lab/draft", "local:draft?model=lab/draft-early")
                    assert len(hub.requests) == asked
                    # The operator's own drafter may be attached again.
                    client.drafters.detach("local:draft?model=hf%3A//lab/draft")
                    client.drafters.attach("local:draft?model=hf://lab/draft", name="again")
            finally:
                service.kill()
            fetched = [event["repository"] for event in service.events() if event["event"] == "hub download started"]
            assert fetched == ["lab/target", "lab/draft", "lab/draft"]
            allowing = services.verifier("target", "--allow-hub-models", program="verifier_service", hub=True)
            try:
                with Client(allowing.address) as client:
                    client.drafters.attach("local:draft?model=lab/draft-early", name="early")
                    assert [drafter.state for drafter in client.drafters.list()] == ["ready"]
            finally:
                allowing.kill()
