"""The requests a verifier serves, as those who may follow them see them."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._messages.methods import FOLLOW_TRAFFIC
from draftwire._messages.reading import read_speculation
from draftwire._types.speculation import SpeculationStats
from draftwire.v1 import verifier_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that finished."""

    prompt_token_ids: list[int]
    """Tokens of its prompt."""
    token_ids: list[int]
    """Tokens of its output."""
    speculation: SpeculationStats
    """What speculation did for it."""
    drafters: list[str]
    """Names of the drafters that drafted for it last, whether or not any token of theirs was verified."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Some requests that finished; none in the first item, which says that the rest follows."""

    requests: list[ServedRequest]
    """The requests, in the order in which they finished."""
    dropped: int
    """Requests since the connection was made that are missing because nobody read in time."""


class TrafficReader:
    """Reads the requests that finish. After a lost connection it goes on with those that finish then."""

    method = FOLLOW_TRAFFIC
    finished = False

    def key(self, size: int) -> None:
        """Goes to the verifier in use."""

    def next_request(self, *, resumable: bool) -> pb.FollowTrafficRequest:
        """Asks for what finishes from now on."""
        return pb.FollowTrafficRequest()

    def begin_anew(self) -> bool:
        """There is nothing to begin anew."""
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
