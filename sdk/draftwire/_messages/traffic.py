"""The finished requests of a verifier, as sent to clients that follow its traffic."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._types.from_message import read
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


def read_traffic(response: pb.FollowTrafficResponse) -> Traffic:
    """Returns the requests of a response."""
    requests = [
        read(ServedRequest, each, speculation=read(SpeculationStats, each.speculation, tokens=len(each.token_ids)))
        for each in response.requests
    ]
    return Traffic(requests, response.dropped)
