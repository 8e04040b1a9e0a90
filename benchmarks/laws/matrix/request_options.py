"""The rows of the matrix: options of requests, each with a request that depends on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from benchmarks.laws.matrix.endpoints import Endpoint, Outcome
from draftwire import GenerateOptions, Generation, Speculation

Run = Callable[[Endpoint, str, int, Speculation], Awaitable[Outcome]]
"""Runs a request: where, its prompt, its seed, its speculation."""

_TOKENS = 40
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["function", "class", "module"]},
        "lines": {"type": "integer", "minimum": 1, "maximum": 999},
    },
    "required": ["name", "kind", "lines"],
    "additionalProperties": False,
}
_GRAMMAR = """
start: sum
sum: product (("+" | "-") product)*
product: value ("*" value)*
value: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""
_TOOL = {"name": "forecast", "parameters": _SCHEMA, "strict": True}


def _sdk(**options: Any) -> Run:
    async def run(where: Endpoint, prompt: str, seed: int, speculation: Speculation) -> Outcome:
        asked: GenerateOptions = {"max_tokens": _TOKENS, "temperature": 0.8, "seed": seed, **options}  # type: ignore[typeddict-item]
        return _outcome(await where.run(where.client.stream(prompt, speculation=speculation, **asked)))

    return run


async def _several(where: Endpoint, prompt: str, seed: int, speculation: Speculation) -> Outcome:
    """n above 1: its results are those of single requests with successive seeds, all of which one call returns."""
    one = await where.client.generate(
        prompt, n=3, max_tokens=_TOKENS, temperature=0.8, seed=seed, speculation=speculation
    )
    parts = [_outcome(each) for each in one.choices]
    tokens, steps = sum(part.tokens for part in parts), sum(part.steps for part in parts)
    return Outcome([part.output for part in parts], tokens, steps, text=parts[0].text)


async def _score(where: Endpoint, prompt: str, seed: int, speculation: Speculation) -> Outcome:
    """Scores the text that the request itself wrote, while drafters are attached."""
    written = await where.run(
        where.client.stream(prompt, max_tokens=_TOKENS, temperature=0.0, seed=seed, speculation=speculation)
    )
    predictions = await where.client.score([*written.prompt_token_ids, *written.token_ids], top=4)
    return replace(_outcome(written), output=[repr(each) for each in predictions])


def _chat(**body: Any) -> Run:
    async def run(where: Endpoint, prompt: str, seed: int, speculation: Speculation) -> Outcome:
        messages = [{"role": "user", "content": prompt[:200]}]
        return await where.chat(
            {"messages": messages, "max_tokens": 200, "seed": seed, "temperature": 0.8, **body}, speculation
        )

    return run


def _outcome(one: Generation) -> Outcome:
    output = (
        one.text, one.token_ids, one.finish_reason, one.stop, one.stop_token_id, repr(one.logprobs), repr(one.prompt)
    )  # fmt: skip
    return Outcome(output, one.speculation.tokens, one.speculation.steps, one.resumes, one.text)


OPTIONS: dict[str, Run] = {
    "greedy": _sdk(temperature=0.0),
    "temperature, top-k, top-p": _sdk(temperature=1.1, top_k=50, top_p=0.9),
    "min-p": _sdk(min_p=0.1),
    "typical-p": _sdk(typical_p=0.8),
    "penalties": _sdk(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5),
    "logit bias, bans": _sdk(logit_bias={9: 2.0}, banned_token_ids=[10, 11, 12], bad_words=["self"]),
    "stop strings": _sdk(stop=["\n\n", "return"], temperature=0.0),
    "logprobs": _sdk(logprobs=4),
    "echo, prompt logprobs": _sdk(echo=True, prompt_logprobs=2),
    "JSON schema": _sdk(json_schema=_SCHEMA),
    "regex": _sdk(regex=r"[a-z_]{3,12}\(([a-z]{1,6}, ){2,6}[a-z]{1,6}\)"),
    "grammar": _sdk(grammar=_GRAMMAR),
    "tools": _chat(
        tools=[{"type": "function", "function": _TOOL}],
        tool_choice={"type": "function", "function": {"name": "forecast"}},
        parallel_tool_calls=False,
    ),
    "reasoning tags": _chat(guided_regex=r"[a-z ]{20,40}</think>[a-z ]{10,30}"),
    "n > 1": _several,
    "score": _score,
}
"""By name."""
