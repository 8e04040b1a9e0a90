"""The pool's drafters that run in the engine's own thread, by their addresses."""

from __future__ import annotations

from collections.abc import Callable

from drafter_pool.drafter_address import check_text
from drafter_pool.pool_member import MemberOwner
from verifier_service.local_address import local_drafter, read_local_address
from verifier_service.local_drafter_link import LocalDrafterLink
from verifier_service.step_loop import StepLoop


class LocalDrafters:
    """See the pool's protocol of this name."""

    def __init__(self, steps: StepLoop, uses_hub: Callable[[str], bool]):
        """uses_hub: whether the model of an address, in its one form, may be a hub id."""
        self._steps = steps
        self._uses_hub = uses_hub

    def read(self, field: str, address: str) -> str:
        """See the protocol."""
        check_text(field, address)
        return read_local_address(field, address)

    def make(self, name: str, address: str, owner: MemberOwner) -> LocalDrafterLink:
        """See the protocol."""
        target, hub = self._steps.engine.model, self._uses_hub(address)
        return LocalDrafterLink(name, address, lambda: local_drafter(address, target, hub=hub), self._steps, owner)
