"""Answers of a gateway as its clients see them: whole ones, and streams that a client stops reading."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

DATA, DONE = "data: ", "data: [DONE]"


@dataclass(frozen=True)
class Answer:
    """An answer that was read to its end."""

    status: int
    headers: httpx.Headers
    bodies: Sequence[dict[str, Any]]
    """The events of a stream, or the only body."""

    @property
    def text(self) -> str:
        """The text of the only choice."""
        choices = [choice for body in self.bodies for choice in body["choices"]]
        parts = [each if "text" in each else each.get("delta") or each.get("message") or {} for each in choices]
        return "".join(part.get("text") or part.get("content") or "" for part in parts)

    @property
    def usage(self) -> dict[str, Any]:
        """The usage; a stream has it if it was asked for."""
        found: list[dict[str, Any]] = [body["usage"] for body in self.bodies if body.get("usage")]
        [usage] = found
        return usage

    @property
    def fingerprint(self) -> str:
        """The fingerprint, the same in the header and in all events."""
        found: set[str] = {
            self.headers["x-draftwire-fingerprint"],
            *(each["system_fingerprint"] for each in self.bodies),
        }
        [fingerprint] = found
        return fingerprint


async def answer_to(http: httpx.AsyncClient, path: str, body: dict[str, Any], **headers: str) -> Answer:
    """Returns the answer to a request, whole or streamed. A stream must have no error, and come to its end."""
    asked = body | ({"stream_options": {"include_usage": True}} if body.get("stream") else {})
    async with http.stream("POST", path, json=asked, headers=headers) as response:
        if response.headers["content-type"].startswith("text/event-stream"):
            return _streamed(response, [line async for line in response.aiter_lines()])
        return Answer(response.status_code, response.headers, [json.loads(await response.aread())])


@dataclass
class Held:
    """A stream whose client has read its first part and no more."""

    _response: httpx.Response
    _first: str
    _lines: AsyncIterator[str]

    async def read(self) -> Answer:
        """Reads the stream to its end."""
        return _streamed(self._response, [self._first, *[line async for line in self._lines]])


@asynccontextmanager
async def held(http: httpx.AsyncClient, body: dict[str, Any], tokens: int, **headers: str) -> AsyncIterator[Held]:
    """Begins a stream of so many tokens, and stops reading it.

    With 64 alternatives, 1200 tokens have 5 MB of events, and the buffers of a connection hold less than 4.5 MB. So the
    request runs until the stream is read, however fast the verifier is.
    """
    asked = body | {"max_tokens": tokens, "ignore_eos": True, "logprobs": True, "top_logprobs": 64, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    async with http.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        yield Held(response, await anext(lines), lines)


def _streamed(response: httpx.Response, lines: Sequence[str]) -> Answer:
    *events, last = [line for line in lines if line]
    assert last == DONE, last
    bodies = [json.loads(line.removeprefix(DATA)) for line in events]
    assert not any("error" in body for body in bodies), bodies[-1]
    return Answer(response.status_code, response.headers, bodies)
