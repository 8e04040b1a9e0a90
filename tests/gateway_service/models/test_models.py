"""The targets of all models, and their clients, when the list of models changes."""

import asyncio

import pytest
from grpc import StatusCode

from draftwire import AsyncClient, RetryPolicy
from gateway_service.http.errors import GatewayError
from gateway_service.keys.key_file import NamedKey
from gateway_service.models import models as module
from gateway_service.models import served_model
from gateway_service.models.model_file import ModelEntry, TargetEntry
from gateway_service.models.models import Models
from gateway_service.models.served_model import ServedModel
from tests.harness.stand_ins.fake_verifier import rich_status
from tests.harness.stand_ins.telling_verifier import TellingVerifier

BLUE, GREEN = ("127.0.0.1:1",), ("127.0.0.1:2", "127.0.0.1:3")


def entry(*targets: tuple[tuple[str, ...], float], names: tuple[str, ...] = ("chat",)) -> ModelEntry:
    return ModelEntry(names, tuple(TargetEntry(verifiers, share) for verifiers, share in targets))


class Entries:
    """A list of models that a test changes."""

    def __init__(self, *entries: ModelEntry) -> None:
        self.now = entries

    def __call__(self) -> tuple[ModelEntry, ...]:
        return self.now


async def addresses(models: Models, asked: str = "chat") -> tuple[str, ...]:
    target = (await models.find(asked, None)).next_target()
    return tuple(each.address for each in target.client.verifiers)


async def test_clients_outlive_a_change_and_those_of_withdrawn_targets_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MARGIN_SECONDS", 0.0)
    entries = Entries(entry((BLUE, 1)))
    async with Models(entries, AsyncClient, request_seconds=0.0) as models:
        [blue] = models.clients
        entries.now = (entry((BLUE, 0), (GREEN, 1)),)
        assert await addresses(models) == GREEN
        _, green = models.clients
        assert models.clients[0] is blue
        entries.now = (entry((GREEN, 1)),)
        assert models.first.client is green
        assert models.clients == [blue, green]  # its requests may still run
        assert models.serving == [green]
        entries.now = (entry((GREEN, 1), (BLUE, 1)),)
        assert models.first.client is green
        await asyncio.sleep(0.01)
        assert models.clients == [blue, green]  # it came back in time
        entries.now = (entry((GREEN, 1)),)
        assert models.first.client is green
        await asyncio.sleep(0.01)
        assert models.clients == [green]


async def test_one_client_for_a_target_of_two_names() -> None:
    entries = Entries(entry((BLUE, 1)), entry((BLUE, 1), names=("code",)))
    async with Models(entries, AsyncClient, request_seconds=1.0) as models:
        assert len(models.clients) == 1
        assert await addresses(models, "code") == BLUE


async def test_names_aliases_and_keys() -> None:
    entries = Entries(entry((BLUE, 1), names=("one", "uno")), entry((GREEN, 1), names=("two", "due")))
    async with Models(entries, AsyncClient, request_seconds=1.0) as models:
        for asked, key, name, model in (
            (None, None, "one", "one"),
            ("due", None, "due", "two"),
            (None, NamedKey("alice", models=frozenset({"two"})), "two", "two"),
            (None, NamedKey("alice", models=frozenset({"uno"})), "uno", "one"),
            (None, NamedKey("alice", models=frozenset({"three"})), "one", "one"),
        ):
            found = await models.find(asked, key)
            assert (found.name, found.first_name) == (name, model)
        with pytest.raises(GatewayError, match="'one', 'uno', 'two', 'due'") as refused:
            await models.find("three", None)
        assert (refused.value.status, refused.value.code) == (404, "model_not_found")


async def test_the_first_request_after_a_pause_gets_the_model_that_is_served_now(
    fake: TellingVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At night a verifier may have restarted with another one, by whose name it is asked for."""
    async with AsyncClient(fake.address, retry=RetryPolicy(attempts_per_address=1)) as client:
        served = ServedModel(client)
        assert await served.adapters() == []
        fake.adapters = ["of-another"]
        assert await served.adapters() == [], "not asked again at once"
        monkeypatch.setattr(served_model, "_FRESH_SECONDS", -1.0)
        monkeypatch.setattr(served_model, "_OLD_SECONDS", -1.0)
        assert await served.adapters() == ["of-another"]
        fake.fails_on["GetModelInfo"] = rich_status(StatusCode.UNAVAILABLE, "shutting down", "SHUTTING_DOWN")
        assert await served.adapters() == ["of-another"], "the last known"
