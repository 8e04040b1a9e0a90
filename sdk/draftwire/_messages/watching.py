"""Reader of the stream of a verifier's drafters, which sends their state after every change."""

from __future__ import annotations

from draftwire._messages.methods import WATCH_DRAFTERS
from draftwire._types.drafter import DrafterList, read_drafters
from draftwire.v1 import drafter_pool_service_pb2 as pb


class WatchReader:
    """Reads the states of a pool."""

    method = WATCH_DRAFTERS
    finished = False

    def key(self, size: int) -> None:
        """Returns None, which selects the verifier in use."""

    def next_request(self, *, resumable: bool) -> pb.WatchDraftersRequest:
        """Returns the request, which is always the same: each stream begins with the current state."""
        return pb.WatchDraftersRequest()

    def begin_anew(self) -> bool:
        """Returns False: a restart is never needed."""
        return False

    def read(self, response: pb.WatchDraftersResponse) -> DrafterList:
        """Returns the state in a response."""
        return read_drafters(response.drafters)
