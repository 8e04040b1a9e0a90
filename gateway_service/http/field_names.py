"""Names of the contract's fields in HTTP requests, for errors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from draftwire import DraftwireError

_DEFAULT = {
    "include_stop": "include_stop_str_in_output",
    "log_probs": "logprobs",
    "messages.add_generation_prompt": "add_generation_prompt",
    "messages.chat_template_kwargs": "chat_template_kwargs",
    "messages.continue_final_message": "continue_final_message",
    "messages.messages": "messages",
    "prompt_log_probs": "prompt_logprobs",
    "speculation.drafter_names": "speculation.drafters",
    "structured_output": "response_format",
    "text": "prompt",
    "token_ids": "prompt",
    "token_ids.ids": "prompt",
}
_WHOLE = frozenset({"structured_output", "speculation.prediction"})
"""Fields whose parts have no names of their own in a request."""
_BIAS = re.compile(r"logit_bias\[(\d+)\]")
_STEP = re.compile(r"[.\[]")


class FieldNames:
    """Translates paths of the contract's fields into the names used in a request."""

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        """own: names of fields in addition to those common to all requests."""
        self._names = _DEFAULT | dict(own or {})

    def param(self, field: str) -> str:
        """Returns the field of the request."""
        name = self._name(field)
        return "logit_bias" if _BIAS.fullmatch(name) else name

    def place(self, field: str) -> str:
        """Returns the place in the request, for people: a key of `logit_bias` is shown as a token."""
        name = self._name(field)
        return _BIAS.sub(r"logit_bias: token \1", name) if _BIAS.fullmatch(name) else name

    def message(self, error: DraftwireError) -> str:
        """Returns an error's message, followed by the details of each field unless the message consists of them."""
        wrong = error.field_violations
        if not wrong:
            return error.message
        told = "; ".join(f"{self.place(each.field)}: {each.description}" for each in wrong)
        as_sent = "; ".join(f"{each.field}: {each.description}" for each in wrong)
        return told if error.status.message == as_sent else f"{error.message} ({told})"

    def _name(self, field: str) -> str:
        """Translates the longest prefix of the path that has a name, and keeps the rest."""
        field = field.removeprefix("sampling.")
        ends = [len(field), *(found.start() for found in reversed(list(_STEP.finditer(field))))]
        for end in ends:
            known = field[:end]
            if known in self._names:
                return self._names[known] + ("" if known in _WHOLE else field[end:])
        return field


FIELD_NAMES = FieldNames()
"""Names of fields for requests without names of their own."""
