"""The pool's drafters that run in the engine's own thread, by their addresses."""

from __future__ import annotations

from drafter_pool.drafter_address import check_text
from drafter_pool.pool_member import MemberOwner
from verifier_service.local_address import local_drafter, read_local_address
from verifier_service.local_drafter_link import LocalDrafterLink
from verifier_service.step_loop import StepLoop


class LocalDrafters:
    """See the pool's protocol of this name."""

    def __init__(self, steps: StepLoop):
        self._steps = steps

    def read(self, field: str, address: str) -> str:
        """See the protocol."""
        check_text(field, address)
        return read_local_address(field, address)

    def make(self, name: str, address: str, owner: MemberOwner) -> LocalDrafterLink:
        """See the protocol."""
        target = self._steps.engine.model
        return LocalDrafterLink(name, address, lambda: local_drafter(address, target), self._steps, owner)
