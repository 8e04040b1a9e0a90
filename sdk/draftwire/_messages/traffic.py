"""The finished requests of a verifier, as sent to clients that follow its traffic."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
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
    top: int = 0
    """Number of tokens in ``top_token_ids`` for each position; 0 if there are none."""
    top_token_ids: Sequence[int] = ()
    """The target's likeliest tokens at the last positions of the output, best first: ``top`` for each position."""
    top_log_probs: Sequence[float] = ()
    """Natural log-probabilities of these tokens, at temperature 1; minus infinity where a position has fewer."""


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
        read(
            ServedRequest,
            each,
            speculation=read(SpeculationStats, each.speculation, tokens=len(each.token_ids)),
            top_token_ids=array("I", each.top_token_ids),  # a list takes several times as much memory
            top_log_probs=array("f", each.top_log_probs),
        )
        for each in response.requests
    ]
    return Traffic(requests, response.dropped)
