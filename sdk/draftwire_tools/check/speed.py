"""The speed of a check's drafters: the cost of verification, acceptance, speed-up, and the planner's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire._types.step_times import StepCost
from draftwire_tools.bench.comparison import Plan
from draftwire_tools.bench.figures import Figures, figures
from draftwire_tools.bench.method import PLAIN, Method
from draftwire_tools.bench.prompt import BenchPrompt
from draftwire_tools.check.prompts import CheckPrompt

_LEAST_TOKENS = 8
_TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class Speed:
    """The measured speed. It is no part of the verdict."""

    step_costs: list[StepCost]
    """c(n): seconds of a step by its rows, as the verifier estimates them."""
    figures: list[Figures]
    """Figures by prompt kind, temperature and drafters, with the planner's own choice of draft tokens."""
    tree_size: float
    """Draft tokens per sequence and step that the planner chose, over all these requests."""
    waits: int
    """Steps that it delayed to wait for draft tokens."""
    max_tokens: int
    """Tokens of each request."""

    def to_json(self) -> dict[str, Any]:
        """Returns the speed as a JSON value."""
        return {
            "step_costs": [{"rows": each.rows, "seconds": each.seconds} for each in self.step_costs],
            "draft_tokens_per_sequence_and_step": self.tree_size,
            "waits": self.waits,
            "max_tokens": self.max_tokens,
            "figures": [
                {
                    "prompts": each.setting.task,
                    "temperature": each.setting.temperature,
                    "drafters": each.method.name,
                    "speed_up": each.speed_up.median,
                    "tokens_per_second": each.tokens_per_second.median,
                    "acceptance_rate": each.acceptance_rate,
                    "acceptance_length": each.acceptance_length,
                    "draft_tokens": each.draft_tokens,
                }
                for each in self.figures
            ],
        }


async def measure_speed(
    client: AsyncClient,
    prompts: Sequence[CheckPrompt],
    drafters: Sequence[Drafter],
    max_tokens: int,
    seconds: float,
    token_seconds: float,
) -> Speed | None:
    """Measures plain decoding, each drafter and all together on one prompt of each kind, in turns.

    Args:
        client: client of the verifier.
        prompts: one of each kind.
        drafters: the drafters.
        max_tokens: most tokens of a request; fewer if the time does not suffice.
        seconds: the time for it.
        token_seconds: seconds per token of plain decoding.

    Returns None if the time does not suffice.

    Raises:
        DraftwireError: a request failed.
    """
    methods = [PLAIN, *(Method(drafter.name, (drafter,)) for drafter in drafters)]
    if len(drafters) > 1:
        methods.append(Method("all", tuple(drafters)))
    texts = [BenchPrompt(prompt.kind, "1", prompt.text) for prompt in prompts]
    plan = Plan(texts, _TEMPERATURES, max_tokens, runs=1, concurrency=1, seed=1)
    for fewer in (plan, replace(plan, temperatures=_TEMPERATURES[:1])):
        most = int(seconds / (len(fewer.slots(methods)) * token_seconds)) if token_seconds else max_tokens
        plan = replace(fewer, max_tokens=min(max_tokens, most))
        if plan.max_tokens >= min(_LEAST_TOKENS, max_tokens):
            break
    else:
        return None
    before = (await client.model_info()).engine.planner
    turns = await plan.measure(client, methods, lambda: None)
    after = (await client.model_info()).engine.planner
    sequences = after.sequences - before.sequences
    return Speed(
        step_costs=after.step_costs,
        figures=figures(turns),
        tree_size=(after.draft_tokens - before.draft_tokens) / sequences if sequences else 0.0,
        waits=after.waits - before.waits,
        max_tokens=plan.max_tokens,
    )
