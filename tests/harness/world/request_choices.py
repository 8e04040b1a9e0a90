"""The requests that clients of the simulated world send."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.speculation_pb2 import DraftPlanning, SpeculationOptions
from draftwire.v1.verifier_service_pb2 import GenerateRequest, TokenIds
from tests.harness.world.plain_reference import MOST_TOKENS
from tests.harness.world.world import LOCAL

PROMPTS = [[5], [7, 3], [9, 14, 23, 42, 7], [11, 60, 8, 33, 21, 40, 6, 19, 50, 28, 12, 9]]
SAMPLINGS = [
    SamplingParams(temperature=0.0, seed=7),
    SamplingParams(temperature=0.8, seed=1),
    SamplingParams(temperature=1.2, top_p=0.95, seed=2),
]
NAMES = ["good", "poor", "wild"]
MEMBERS = [*NAMES, LOCAL]


def request_of(
    prompt: Sequence[int] = PROMPTS[0],
    sampling: SamplingParams = SAMPLINGS[0],
    max_tokens: int = MOST_TOKENS,
    *,
    ignore_eos: bool = True,
    **speculation: Any,
) -> GenerateRequest:
    """Makes a request. speculation: fields of SpeculationOptions."""
    return GenerateRequest(
        token_ids=TokenIds(ids=prompt),
        sampling=sampling,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        speculation=SpeculationOptions(**speculation),
    )


class RequestChoices:
    """Requests to choose from: each field has one of a few values."""

    def __init__(self, max_tokens: Sequence[int], drafters: Sequence[str | None]) -> None:
        self._fields: dict[str, Sequence[Any]] = {
            "prompt": PROMPTS,
            "sampling": SAMPLINGS,
            "max_tokens": max_tokens,
            "ignore_eos": [True, True, False],
            "drafter": drafters,
            "drafters": [None, 2],
            "max_draft_tokens": [None, None, None, None, 0, 2],
            "planning": [None, None, None, DraftPlanning.DRAFT_PLANNING_ALWAYS],
        }

    def strategy(self) -> st.SearchStrategy[GenerateRequest]:
        """Returns Hypothesis's strategy for them."""
        return st.builds(request_of, **{name: st.sampled_from(values) for name, values in self._fields.items()})

    def choice(self, rng: random.Random) -> GenerateRequest:
        """Chooses one at random."""
        return request_of(**{name: rng.choice(values) for name, values in self._fields.items()})


REQUESTS = RequestChoices([MOST_TOKENS, MOST_TOKENS, 9, 2, 1], [None, None, None, *MEMBERS])
LONG_REQUESTS = RequestChoices([MOST_TOKENS], [None])
