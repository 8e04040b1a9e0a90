"""All models that the gateway serves, by their names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from draftwire import AsyncClient, EngineStatus, VerifierInfo
from draftwire._types.quoting import shortened
from draftwire_core.runtime.process.logs import get_logger
from gateway_service.http.errors import GatewayError
from gateway_service.keys.key_file import NamedKey
from gateway_service.models.model_file import ModelEntry
from gateway_service.models.served_model import ServedModel

log = get_logger(__name__)

_MARGIN_SECONDS = 10.0
"""Extra time for requests of a withdrawn target to report that their time is over."""


class Shares:
    """Chooses one of several for each request, so that every prefix of the choices has the shares as nearly as it can.

    The choice is smooth weighted round robin: each gains its share with every request, the richest is chosen and pays
    for all.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """shares: at least one is above 0; one of 0 is never chosen."""
        self._shares = tuple(shares)
        self._gained = [0.0] * len(self._shares)

    def choose(self) -> int:
        """Returns the index of the next choice."""
        able = [index for index, share in enumerate(self._shares) if share]
        for index in able:
            self._gained[index] += self._shares[index]
        chosen = max(able, key=lambda index: self._gained[index])
        self._gained[chosen] -= sum(self._shares)
        return chosen


@dataclass(frozen=True, slots=True)
class _Model:
    given_names: tuple[str, ...]
    targets: tuple[ServedModel, ...]
    shares: Shares
    described: ServedModel

    async def names(self) -> tuple[str, ...]:
        """Returns the model's names: those given to it, or the verifier's own."""
        return self.given_names or ((await self.described.info()).model_id,)

    async def loads(self) -> list[VerifierInfo]:
        """Returns what the verifiers of all targets report now, as `ServedModel.loads`."""
        each = await asyncio.gather(*(target.loads() for target in self.targets))
        return [info for infos in each for info in infos]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model under one of its names."""

    name: str
    first_name: str
    """The name that its other names are aliases of."""
    model: _Model
    adapter: str | None = None
    """The LoRA adapter that the name stands for."""

    @property
    def described(self) -> ServedModel:
        """The target that describes the model: the one with the largest share."""
        return self.model.described

    def next_target(self) -> ServedModel:
        """Returns the target of the next request for a text, by the shares."""
        return self.model.targets[self.model.shares.choose()]


class Models:
    """Finds the target of a request by the name of its model. To be used as `async with`, on one event loop.

    The targets have one client each. When the list of models changes, targets that are in it before and after keep
    their client, with its connections and its loads; one that is no longer in it gets no new request, and keeps its
    client until its last request must be over.
    """

    def __init__(
        self,
        entries: Callable[[], tuple[ModelEntry, ...]],
        connect: Callable[[tuple[str, ...]], AsyncClient],
        request_seconds: float,
    ) -> None:
        """entries: returns the models, as the same object until they change. connect: returns a new client of these
        verifiers. request_seconds: longest time of a request."""
        self._read = entries
        self._connect = connect
        self._seconds = request_seconds
        self._entries: tuple[ModelEntry, ...] = ()
        self._models: tuple[_Model, ...] = ()
        self._targets: dict[tuple[str, ...], ServedModel] = {}
        """All targets that have a client, by their verifiers."""
        self._leaving: dict[tuple[str, ...], asyncio.TimerHandle] = {}
        """Targets that get no new requests."""
        self._closing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Makes the clients, which connect with their first calls."""
        self._current()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the clients; running requests end."""
        for timer in self._leaving.values():
            timer.cancel()
        await asyncio.gather(*self._closing, *(target.client.close() for target in self._targets.values()))

    @property
    def first(self) -> ServedModel:
        """The target that describes the first model."""
        return self._current()[0].described

    @property
    def clients(self) -> list[AsyncClient]:
        """The clients of all targets, those that get no new requests included."""
        return [target.client for target in self._targets.values()]

    @property
    def serving(self) -> list[AsyncClient]:
        """The clients of the targets that are listed now."""
        self._current()
        return [target.client for verifiers, target in self._targets.items() if verifiers not in self._leaving]

    async def all(self) -> list[NamedModel]:
        """Returns all models under all their names.

        Raises:
            DraftwireError: a name is the verifier's, which cannot be asked.
        """
        models = [(model, await model.names()) for model in self._current()]
        return [NamedModel(name, names[0], model) for model, names in models for name in names]

    async def adapted(self) -> list[NamedModel]:
        """Returns the models with LoRA adapters, under the adapters' names.

        Raises:
            DraftwireError: as `all`.
        """
        models = [each for each in await self.all() if each.name == each.first_name]
        told = await asyncio.gather(*(each.described.adapters() for each in models))
        return [
            NamedModel(adapter, each.first_name, each.model, adapter)
            for each, adapters in zip(models, told, strict=True)
            for adapter in adapters
        ]

    async def loads(self) -> dict[str, list[EngineStatus]]:
        """Returns what the engines of each model report now, by the model's first name; models none of whose verifiers
        answers are left out."""
        models = self._current()
        told = await asyncio.gather(*(model.loads() for model in models))
        found: dict[str, list[EngineStatus]] = {}
        for model, infos in zip(models, told, strict=True):
            if infos:
                found[(model.given_names or (infos[0].model_id,))[0]] = [info.engine for info in infos]
        return found

    async def find(self, name: str | None, key: NamedKey | None) -> NamedModel:
        """Returns the model of that name, or, without one, the first that the key permits.

        An empty name is none: OpenAI's clients require one, so callers who mean any model write that.

        Raises:
            GatewayError: there is none of that name.
            DraftwireError: a name is the verifier's, which cannot be asked.
        """
        every = await self.all()
        if not name:
            permitted = (each for each in every if key is None or key.permits(each.name, each.first_name))
            return next(permitted, every[0])
        for each in every:
            if each.name == name:
                return each
        for each in await self.adapted():
            if each.name == name:
                return each
        known = ", ".join(repr(each.name) for each in every)
        message = f"the model {shortened(name)!r} does not exist; the served model is {known}"
        if len(self._models) > 1:
            message = f"the model {shortened(name)!r} does not exist; the served models are {known}"
        raise GatewayError(message, status=404, param="model", code="model_not_found")

    def _current(self) -> tuple[_Model, ...]:
        entries = self._read()
        if entries is not self._entries:
            self._entries = entries
            self._models = tuple(self._made(entry) for entry in entries)
            used = {target.verifiers for entry in entries for target in entry.targets}
            for verifiers in self._targets.keys() - used - self._leaving.keys():
                self._leave(verifiers)
        return self._models

    def _made(self, entry: ModelEntry) -> _Model:
        targets = tuple(self._target(target.verifiers) for target in entry.targets)
        shares = [target.share for target in entry.targets]
        return _Model(entry.names, targets, Shares(shares), targets[shares.index(max(shares))])

    def _target(self, verifiers: tuple[str, ...]) -> ServedModel:
        leaving = self._leaving.pop(verifiers, None)
        if leaving is not None:
            leaving.cancel()
        if verifiers not in self._targets:
            self._targets[verifiers] = ServedModel(self._connect(verifiers))
        return self._targets[verifiers]

    def _leave(self, verifiers: tuple[str, ...]) -> None:
        loop = asyncio.get_running_loop()
        self._leaving[verifiers] = loop.call_later(self._seconds + _MARGIN_SECONDS, self._close, verifiers)
        log.info("target removed", verifiers=list(verifiers), seconds=self._seconds)

    def _close(self, verifiers: tuple[str, ...]) -> None:
        del self._leaving[verifiers]
        closing = asyncio.ensure_future(self._targets.pop(verifiers).client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
