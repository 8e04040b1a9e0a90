"""The output items of a response, and the events that report how they come about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.part import CallArguments, CallStart, Content, Part, Reasoning, joined

Event = tuple[str, dict[str, Any]]
"""The type of an event, and its fields."""
_KINDS = {Content: ("message", "msg"), Reasoning: ("reasoning", "rs")}
_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}


class OutputItems:
    """Builds the items of one response from the parts of its answer."""

    def __init__(self, plan: AnswerPlan, answer: str, namespaced: Mapping[str, tuple[str, str]]) -> None:
        """answer: the response's id, from which those of its items follow. namespaced: namespaces and names of those
        functions that the model knows by another name."""
        self._plan = plan
        self._namespaced = namespaced
        self._answer = answer
        self.items: list[dict[str, Any]] = []
        """The items so far; the last one may be incomplete."""
        self._open: dict[str, Any] | None = None
        """The item that is being written."""

    def push(self, parts: Iterable[Part]) -> list[Event]:
        """Returns the events of the next parts."""
        events: list[Event] = []
        for part in joined(parts):
            match part:
                case Content(text) | Reasoning(text):
                    events += self._text(*_KINDS[type(part)], text)
                case CallStart(index, name):
                    events += self.end()
                    call = {"type": "function_call", "call_id": self._plan.call_id(self._answer, index)}
                    if name in self._namespaced:
                        call["namespace"], name = self._namespaced[name]
                    events += self._begin("fc", call | {"name": name, "arguments": ""})
                case CallArguments(_, text):
                    assert self._open is not None
                    self._open["arguments"] += text
                    events.append(self._event("function_call_arguments.delta", self._open, delta=text))
        return events

    def end(self, status: str = "completed") -> list[Event]:
        """Returns the events that end the item being written. status: completed, or incomplete."""
        item, self._open = self._open, None
        if item is None:
            return []
        item["status"] = status
        done = self._event("output_item.done", None, item=item)
        if item["type"] == "function_call":
            more = {"arguments": item["arguments"], "name": item["name"]}
            return [self._event("function_call_arguments.done", item, **more), done]
        kind = _TEXTS[item["type"]]
        (part,) = item["content"]
        ended = self._event(f"{kind}.done", item, content_index=0, text=part["text"], **_log_probs(kind))
        return [ended, self._event("content_part.done", item, content_index=0, part=part), done]

    def _text(self, kind: str, prefix: str, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open["type"] != kind:
            events += self.end()
            part: dict[str, Any] = {"type": _TEXTS[kind], "text": ""}
            whole: dict[str, Any] = {"summary": []}
            if kind == "message":
                part, whole = part | {"annotations": []}, {"role": "assistant"}
            events += self._begin(prefix, {"type": kind, **whole, "content": []})
            assert self._open is not None
            events.append(self._event("content_part.added", self._open, content_index=0, part=part))
            self._open["content"] = [part]
        assert self._open is not None
        self._open["content"][0]["text"] += text
        more = _log_probs(_TEXTS[kind])
        return [*events, self._event(f"{_TEXTS[kind]}.delta", self._open, content_index=0, delta=text, **more)]

    def _begin(self, prefix: str, item: dict[str, Any]) -> list[Event]:
        name = f"{prefix}_{self._answer.removeprefix('resp_')}_{len(self.items)}"
        self._open = {"id": name, "status": "in_progress", **item}
        self.items.append(self._open)
        return [self._event("output_item.added", None, item=self._open)]

    def _event(self, name: str, of: dict[str, Any] | None, /, **fields: Any) -> Event:
        """Returns an event of the last item, or of a part of it. Fields are copied, since the item goes on changing."""
        known = {} if of is None else {"item_id": of["id"]}
        return f"response.{name}", {**known, "output_index": len(self.items) - 1, **deepcopy(fields)}


def _log_probs(kind: str) -> dict[str, Any]:
    """Returns the field for log-probabilities, which events of a message's text have and which is empty here."""
    return {"logprobs": []} if kind == "output_text" else {}
