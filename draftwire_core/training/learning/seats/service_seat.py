"""The seat of a draft model in two drafter services, of which one drafts and the other one is the canary."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from draftwire import Client, Drafter
from draftwire.errors import InternalError, RolloutNotFoundError
from draftwire_core.training.learning.learning_directory import LearningState, Versions
from draftwire_core.training.learning.seats.seat import Seated
from draftwire_core.training.refresh.trial import Verdict

_LOAD_SECONDS = 300.0


class ServiceSeat:
    """A Seat (see `seat.Seat`) of drafter services, which must see the checkpoints under the same paths."""

    def __init__(self, versions: Versions, name: str, canary: str, draft: str):
        """name: of the drafter. canary: address of the other service. draft: what the drafter has loaded at first."""
        self._versions = versions
        self._name, self._canary, self._draft = name, canary, draft

    def find(self, client: Client, state: LearningState) -> Seated | None:
        """Returns the drafter that took over last, or else the named one or a canary that took over unnoted, if it is
        ready."""
        if self._canary != state.address:  # else the two have changed their roles
            state.canary = self._canary
        for rollout in client.drafters.rollouts():
            if rollout.state == "running" and rollout.new.name == state.canary:
                with suppress(RolloutNotFoundError):  # it ends by itself, too
                    client.drafters.withdraw(rollout.new.name)
        ready = {each.name: each for each in client.drafters.list() if each.state == "ready"}
        for name in (state.drafter, self._name, state.canary):
            drafter = ready.get(name)
            if drafter is None:
                continue
            if drafter.address == state.canary:  # the other one of the two drafts now
                state.canary = state.address
            state.address = drafter.address
            return Seated(name, self._draft, self._version(drafter))
        return None

    def _version(self, drafter: Drafter) -> int:
        """Returns the number of the learned checkpoint that a service has loaded, of which it reports the name alone; 0
        for another model."""
        name = Path(drafter.model.model_id).name if drafter.model is not None else ""
        if not name or name == Path(self._draft).name:
            return 0
        return self._versions.number(str(self._versions.path(0).with_name(name))) or 0

    def put(self, client: Client, state: LearningState, seated: Seated) -> str:
        """Has the drafter's service load the promoted checkpoint, or the base."""
        model = str(self._versions.path(state.promoted)) if state.promoted else state.base
        load = client.drafters.load_model(state.address, model, wait=True, timeout=_LOAD_SECONDS)
        if load.state != "serving":
            raise InternalError(f"{state.address} cannot serve {model}: {load.error}")
        return seated.name

    def follow(self, client: Client, state: LearningState) -> None:
        """Swaps the free service, which is the next canary, for the one that drafts."""
        for drafter in client.drafters.list():
            if drafter.address == state.canary:
                client.drafters.swap(drafter.name, state.address, timeout=_LOAD_SECONDS)

    def model(self, base: str) -> str:
        """Returns the checkpoint itself."""
        return base

    def canary(self, state: LearningState, checkpoint: Path) -> tuple[str, Path | None]:
        """Returns the free service, which is to load the checkpoint."""
        return state.canary, checkpoint

    def promoted(self, state: LearningState, verdict: Verdict) -> None:
        """Notes the drafter, and that the service of the one before is the next canary."""
        state.drafter = verdict.drafter
        state.address, state.canary = state.canary, state.address
