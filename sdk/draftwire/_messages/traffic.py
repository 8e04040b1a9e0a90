"""The finished requests of a verifier, as sent to clients that follow its traffic."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._messages.methods import FOLLOW_TRAFFIC
from draftwire._messages.reading import read_speculation
from draftwire._types.speculation import SpeculationStats
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A finished request."""

    prompt_token_ids: list[int]
    """Tokens of its prompt."""
    token_ids: list[int]
    """Tokens of its output."""
    speculation: SpeculationStats
    """The request's speculation statistics."""
    drafters: list[str]
    """Names of the drafters that drafted for it last, whether or not any of their tokens was verified."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Finished requests. The first item is empty and confirms that the stream has begun."""

    requests: list[ServedRequest]
    """The requests, in the order in which they finished."""
    dropped: int
    """Requests lost since the connection was made, because the reader was too slow."""


class TrafficReader:
    """Reads finished requests. After a lost connection it continues with requests that finish from then on."""

    method = FOLLOW_TRAFFIC
    finished = False

    def key(self, size: int) -> None:
        """Returns None, which selects the verifier in use."""

    def next_request(self, *, resumable: bool) -> pb.FollowTrafficRequest:
        """Returns the request for what finishes from now on."""
        return pb.FollowTrafficRequest()

    def begin_anew(self) -> bool:
        """Returns False: a restart is never needed."""
        return False

    def read(self, response: pb.FollowTrafficResponse) -> Traffic:
        """Returns the requests of a response."""
        requests = [
            ServedRequest(
                list(each.prompt_token_ids),
                list(each.token_ids),
                read_speculation(each.speculation, len(each.token_ids)),
                list(each.drafters),
            )
            for each in response.requests
        ]
        return Traffic(requests, response.dropped)
