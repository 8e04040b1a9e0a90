"""Answers written in advance, for the page alone: the gateway is not asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Route

DRAFTER = "good"


class CannedAnswers:
    """Answers the generation requests of a page and keeps them."""

    def __init__(self, page: Page, answer: Callable[[dict[str, Any]], str]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.drafter = DRAFTER
        self._answer = answer
        page.route("**/console/api/generate", self._reply)

    def _reply(self, route: Route) -> None:
        request: dict[str, Any] = json.loads(route.request.post_data or "{}")
        self.requests.append(request)
        events = self._events(self._answer(request), request["speculation"])
        body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
        route.fulfill(body=body, content_type="text/event-stream")

    def _events(self, text: str, drafted: bool) -> list[tuple[str, dict[str, Any]]]:
        """Every second token, of three characters, is a drafter's."""
        events: list[tuple[str, dict[str, Any]]] = []
        tokens = [text[at : at + 3] for at in range(0, len(text), 3)]
        for index, token in enumerate(tokens):
            source = self.drafter if drafted and index % 2 else None
            rejected = [{"text": token, "drafter": source, "position": index, "depth": 1}] if source else []
            pieces = [{"text": token, "source": source}]
            events.append(("chunk", {"sources": [source], "pieces": pieces, "rejected": rejected}))
        result = {
            "text": text, "token_ids": [ord(token[0]) for token in tokens], "finish_reason": "stop", "seed": "1",
            "drafters": [], "acceptance_rate": 0.5, "acceptance_length": 2, "first_token_seconds": 0.1,
            "total_seconds": 0.6 if drafted else 1.1, "steps": 1, "prompt_tokens": 1,
        }  # fmt: skip
        return [*events, ("finished", result)]
