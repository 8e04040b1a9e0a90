"""The parts common to the responses of both endpoints."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from draftwire import Chunk, Generation
from gateway_service.http.request_log import MADE
from gateway_service.openai.generation_request import GenerationRequest
from gateway_service.openai.usage import speculation_report

FinishReason = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]


class SourceReport(BaseModel):
    """The sources of a chunk's tokens."""

    sources: list[str | None]
    """Name of the drafter that drafted each token; null for the target's own."""
    token_texts: list[str]
    """Text of each token on its own."""


class Head:
    """The fields that are the same in all chunks of a response."""

    def __init__(self, prefix: str, request_id: str, model: str, fingerprint: str) -> None:
        """Derives the response's id from its request's, so that a client's copy leads to the request in the logs."""
        self.id = f"{prefix}{request_id.removeprefix(MADE)}"
        self.created = int(time.time())
        self.model = model
        self.fingerprint = fingerprint


def finish_reason(result: Generation) -> FinishReason:
    """Returns why a choice ended, in OpenAI's words."""
    return "stop" if result.finish_reason == "stop" else "length"


def chat_finish(result: Generation, *, calls: bool) -> ChatFinish:
    """Returns why an answer ended, in OpenAI's words. calls: whether it calls tools."""
    reason = finish_reason(result)
    return "tool_calls" if calls and reason == "stop" else reason


def is_cut_off(result: Generation) -> bool:
    """Whether a choice ended before the model ended it: by a limit, or by a string of the request."""
    return result.finish_reason != "stop" or result.stop is not None


def stop_reason(request: GenerationRequest, result: Generation) -> str | int | None:
    """Returns what ended a choice: the stop string, the token of stop_token_ids, or "max_time"."""
    if result.finish_reason == "deadline":
        return "max_time"
    asked = list(request.given.get("stop_token_ids") or ())
    return result.stop_token_id if result.stop_token_id in asked else result.stop


def sources(request: GenerationRequest, chunk: Chunk | None) -> SourceReport | None:
    """Returns the sources of a chunk's tokens, if the request asks for them."""
    if chunk is None or not (request.report_sources and chunk.token_ids):
        return None
    return SourceReport(sources=chunk.sources, token_texts=chunk.token_texts)


def stream_extras(
    request: GenerationRequest, told: SourceReport | None, all_results: Sequence[Generation] | None
) -> dict[str, Any]:
    """Returns a chunk's fields other than its choice; with the last chunk, the statistics of speculation."""
    extras: dict[str, Any] = {"usage": None} if request.include_usage else {}
    if told is not None:
        extras["draftwire"] = told
    if all_results is not None:
        extras["speculation"] = speculation_report(all_results)
    return extras
