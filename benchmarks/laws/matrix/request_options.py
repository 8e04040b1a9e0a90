"""The rows of the matrix: options of requests, each with a request that depends on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.laws.matrix.endpoints import Endpoint
from draftwire import Speculation, SpeculationStats
from draftwire_tools.check.output import Output
from draftwire_tools.check.request import CheckRequest

TOKENS = 40
_CHAT_TOKENS = 200
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
SCORE = "score"
CHATS: dict[str, dict[str, Any]] = {
    "tools": {
        "tools": [{"type": "function", "function": _TOOL}],
        "tool_choice": {"type": "function", "function": {"name": "forecast"}},
        "parallel_tool_calls": False,
    },
    "reasoning tags": {"guided_regex": r"[a-z ]{20,40}</think>[a-z ]{10,30}"},
}
"""Fields of chat completions, by name."""
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature, top-k, top-p": {"temperature": 1.1, "top_k": 50, "top_p": 0.9},
    "min-p": {"min_p": 0.1},
    "typical-p": {"typical_p": 0.8},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit bias, bans": {"logit_bias": {9: 2.0}, "banned_token_ids": [10, 11, 12], "bad_words": ["self"]},
    "stop strings": {"stop": ["\n\n", "return"], "temperature": 0.0},
    "logprobs": {"logprobs": 4},
    "echo, prompt logprobs": {"echo": True, "prompt_logprobs": 2},
    "JSON schema": {"json_schema": _SCHEMA},
    "regex": {"regex": r"[a-z_]{3,12}\(([a-z]{1,6}, ){2,6}[a-z]{1,6}\)"},
    "grammar": {"grammar": _GRAMMAR},
    **CHATS,
    "n > 1": {"n": 3},
    SCORE: {"temperature": 0.0},
}
"""Options of all rows, by name."""


async def ask(where: Endpoint, speculation: Speculation, request: CheckRequest) -> tuple[Output, SpeculationStats]:
    """Runs the request of a row."""
    prompt, asked = request.prompt.text, {"seed": request.seed, "temperature": 0.8, **request.asked}
    if request.sampling in CHATS:
        messages = [{"role": "user", "content": prompt[:200]}]
        return await where.chat({"messages": messages, "max_tokens": _CHAT_TOKENS, **asked}, speculation)
    asked |= {"max_tokens": request.max_tokens, "speculation": speculation}
    if "n" in asked:  # its results are those of single requests with successive seeds, all of which one call returns
        result = await where.client.generate(prompt, **asked)
    else:
        result = await where.run(where.client.stream(prompt, **asked))
    output = Output.of(result)
    if request.sampling == SCORE:  # of the text that the request itself wrote, while drafters are attached
        scored = await where.client.score([*result.prompt_token_ids, *result.token_ids], top=4)
        output = replace(output, more=((SCORE, tuple(map(repr, scored))),))
    each = [choice.speculation for choice in result.choices]
    tokens, steps = sum(one.tokens for one in each), sum(one.steps for one in each)
    return output, replace(result.speculation, tokens=tokens, steps=steps)
