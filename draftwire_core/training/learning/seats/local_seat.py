"""The seat of a drafter inside the verifier: each checkpoint is attached as a drafter of its own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from draftwire import Client
from draftwire.errors import RolloutNotFoundError
from draftwire_core.training.learning.learning_directory import LearningState, Versions
from draftwire_core.training.learning.seats.learning_address import LearningAddress
from draftwire_core.training.learning.seats.seat import Seated
from draftwire_core.training.refresh.trial import Verdict

_LOAD_SECONDS = 300.0


class LocalSeat:
    """A Seat (see `seat.Seat`) of ``local:draft`` or ``local:recurrent``."""

    def __init__(self, versions: Versions, name: str | None = None):
        """name: of the drafter that is to learn; None for the first that can."""
        self._versions = versions
        self._name = name

    def find(self, client: Client, state: LearningState) -> Seated | None:
        """Returns the drafter that is ready: a learned checkpoint, the named one, or the first one."""
        for rollout in client.drafters.rollouts():
            if rollout.state == "running" and self._version(rollout.new.name) is not None:
                with suppress(RolloutNotFoundError):  # it ends by itself, too
                    client.drafters.withdraw(rollout.new.name)
        bases = []
        for drafter in client.drafters.list():
            if drafter.state != "ready" or LearningAddress.parse(drafter.address) is None:
                continue
            version = self._version(drafter.address)
            if version is not None:
                return Seated(drafter.name, "", version)
            if self._name in (None, drafter.name):
                bases.append(Seated(drafter.name, drafter.address, 0))
        return bases[0] if bases else None

    def put(self, client: Client, state: LearningState, seated: Seated) -> str:
        """Swaps what drafts for the promoted checkpoint or the base."""
        address = self._address(state, self._versions.path(state.promoted)) if state.promoted else state.base
        return client.drafters.swap(seated.name, address, timeout=_LOAD_SECONDS).drafter.name

    def follow(self, client: Client, state: LearningState) -> None:
        """Swaps the base, or a learned checkpoint, for what is promoted."""
        for drafter in client.drafters.list():
            found = LearningAddress.parse(drafter.address)
            if drafter.state != "ready" or found is None:
                continue
            version = 0 if found.model == self.model(state.base) else self._version(drafter.address)
            if version is not None and version != state.promoted:
                self.put(client, state, Seated(drafter.name, "", version))

    def model(self, base: str) -> str:
        """Returns the model that the address names."""
        found = LearningAddress.parse(base)
        assert found is not None, "a base is an address that can learn"
        return found.model

    def canary(self, state: LearningState, checkpoint: Path) -> tuple[str, Path | None]:
        """Returns an address that names the checkpoint, with the options of the base."""
        return self._address(state, checkpoint), None

    def promoted(self, state: LearningState, verdict: Verdict) -> None:
        """Notes the drafter's name."""
        state.drafter = verdict.drafter

    def _version(self, address: str) -> int | None:
        found = LearningAddress.parse(address)
        return None if found is None else self._versions.number(found.model)

    def _address(self, state: LearningState, checkpoint: Path) -> str:
        base = LearningAddress.parse(state.base)
        assert base is not None, "a base is an address that can learn"
        return base.of(str(checkpoint), state.weights).address
