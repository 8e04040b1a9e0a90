"""The verifier and the gateway that serve the requests of the matrix, directly or over a line that is cut midway."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx

from draftwire import AsyncClient, AsyncGenerationStream, Generation, RetryPolicy, Speculation, SpeculationStats
from draftwire._types.speculation import NO_SPECULATION
from draftwire_tools.check.output import Output

_CUT_AFTER = 6
"""Tokens, or pieces of an answer, after which the line is cut."""
_SECONDS = 120.0


@dataclass
class Endpoint:
    """A verifier and a gateway in front of it."""

    client: AsyncClient
    gateway: httpx.AsyncClient
    cut: Callable[[], None] | None = None
    """Cuts all connections to the verifier; None to leave them alone."""

    @classmethod
    def at(cls, verifier: str, gateway: str, cut: Callable[[], None] | None = None) -> Endpoint:
        """verifier: address. gateway: URL."""
        client = AsyncClient(verifier, timeout=_SECONDS, retry=RetryPolicy(fruitless_losses=20))
        return cls(client, httpx.AsyncClient(base_url=gateway, timeout=_SECONDS), cut)

    async def close(self) -> None:
        """Closes the connections."""
        await self.client.close()
        await self.gateway.aclose()

    async def run(self, stream: AsyncGenerationStream) -> Generation:
        """Runs a request of the SDK to its end."""
        count, cut = 0, self.cut
        async with stream:
            async for chunk in stream:
                count += len(chunk.token_ids)
                if cut is not None and count >= _CUT_AFTER:
                    cut()
                    cut = None
        return stream.result

    async def chat(self, body: dict[str, Any], speculation: Speculation) -> tuple[Output, SpeculationStats]:
        """Runs a chat completion of the gateway to its end; its message is the output."""
        told = {
            "enabled": speculation.enabled,
            "planning": speculation.planning,
            "prediction": speculation.prediction,
        }
        asked = {
            "model": "target",
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": told,
            **body,
        }
        message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": {}, "finish_reason": None}
        pieces, cut, stats, usage = 0, self.cut, {}, {}
        async with self.gateway.stream("POST", "/v1/chat/completions", json=asked) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RuntimeError(f"the gateway answers {answer.status_code}: {(await answer.aread()).decode()}")
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line.removeprefix("data: "))
                usage, stats = event.get("usage") or usage, event.get("speculation") or stats
                for choice in event.get("choices", ()):
                    _add(message, choice)
                    pieces += 1
                if cut is not None and pieces >= _CUT_AFTER:
                    cut()
                    cut = None
        written = [message["reasoning_content"], message["content"]]
        written += [call["arguments"] for call in message["calls"].values()]
        output = Output((), (), "".join(written), str(message["finish_reason"]), (), (("message", message),))
        tokens, accepted = int(usage["completion_tokens"]), int(stats.get("accepted_tokens", 0))
        return output, replace(NO_SPECULATION, tokens=tokens, steps=tokens - accepted, accepted_tokens=accepted)


def _add(message: dict[str, Any], choice: dict[str, Any]) -> None:
    """Adds a piece of a streamed message. Ids of calls are left out: they are random."""
    delta = choice.get("delta", {})
    for name in ("content", "reasoning_content"):
        message[name] += delta.get(name) or ""
    for call in delta.get("tool_calls") or ():
        known = message["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
        function = call.get("function", {})
        known["name"] += function.get("name") or ""
        known["arguments"] += function.get("arguments") or ""
    message["finish_reason"] = choice.get("finish_reason") or message["finish_reason"]
