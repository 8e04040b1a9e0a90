"""A running request as the page sees it: its tokens, their drafters, the rejected tokens, and the result."""

from __future__ import annotations

from typing import Any

from draftwire import AsyncClient, AsyncGenerationStream, Chunk, Generation, Speculation
from gateway_service.console.event_stream import Events
from gateway_service.console.forms import GenerateForm
from gateway_service.console.token_pieces import TokenPieces


async def generation_events(client: AsyncClient, form: GenerateForm) -> Events:
    """Runs a request and yields its events. Closing the generator cancels the request."""
    pieces = TokenPieces()
    async with _begin(client, form) as stream:
        async for chunk in stream:
            yield "chunk", _describe_chunk(chunk, pieces)
    yield "finished", _describe_result(stream.result)


def _begin(client: AsyncClient, form: GenerateForm) -> AsyncGenerationStream:
    options: dict[str, Any] = {
        "max_tokens": form.max_tokens,
        "temperature": form.temperature,
        "top_p": form.top_p,
        "seed": form.seed,
        "report_rejected": form.speculation,
        "speculation": Speculation(enabled=form.speculation),
    }
    if form.messages is not None:
        return client.stream_chat([message.model_dump() for message in form.messages], **options)
    return client.stream(form.prompt or "", **options)


def _describe_chunk(chunk: Chunk, pieces: TokenPieces) -> dict[str, Any]:
    return {
        "sources": chunk.sources,
        "pieces": [{"text": text, "source": source} for text, source in pieces.take(chunk)],
        "rejected": [
            {"text": draft.text, "drafter": draft.drafter, "position": draft.position, "depth": draft.depth}
            for draft in chunk.rejected
        ],
    }


def _describe_result(result: Generation) -> dict[str, Any]:
    stats = result.speculation
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "seed": str(result.seed),  # may exceed a JavaScript number
        "prompt_tokens": result.usage.prompt_tokens,
        "first_token_seconds": result.usage.first_token_seconds,
        "total_seconds": result.usage.total_seconds,
        "steps": stats.steps,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_length": stats.acceptance_length,
        "drafters": [
            {
                "name": drafter.name,
                "draft_tokens": drafter.draft_tokens,
                "accepted_tokens": drafter.accepted_tokens,
            }
            for drafter in stats.drafters
        ],
    }
