"""The requests of a check: prompts under samplings, each with a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from draftwire._types.options import GenerateOptions
from draftwire._types.speculation import Speculation
from draftwire_tools.check.prompts import CheckPrompt

SAMPLINGS: dict[str, GenerateOptions] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8},
    "T=1.2, top-p": {"temperature": 1.2, "top_p": 0.95},
    "penalties, min-p, bias": {
        "temperature": 0.9,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "min_p": 0.05,
        "logit_bias": {10: 1.5, 11: -3.0, 20: 0.5},
    },
    "log-probabilities": {"temperature": 0.7, "logprobs": 5},
}
"""The samplings of a check by name; each request of a case runs under all of them."""


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """One request, which must have one output."""

    number: int
    """The request's number within its sampling."""
    prompt: CheckPrompt
    """The request's prompt."""
    sampling: str
    """The name of its sampling."""
    seed: int
    """The request's seed."""
    max_tokens: int
    """Most tokens of its output."""
    asked: Mapping[str, Any]
    """The request's other options, those of the sampling."""

    @property
    def key(self) -> tuple[str, int]:
        """The inputs that the output depends on, within one check."""
        return self.sampling, self.number

    def options(self, speculation: Speculation, **more: Any) -> GenerateOptions:
        """Returns the options of the request with these of speculation, and further ones."""
        options: dict[str, Any] = {
            **self.asked,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            **more,
            "speculation": speculation,
        }
        return cast(GenerateOptions, options)

    def to_json(self) -> dict[str, Any]:
        """Returns what is needed to repeat the request, as a JSON value."""
        options = {**self.asked, "max_tokens": self.max_tokens, "seed": self.seed}
        return {"prompt": self.prompt.text, "kind": self.prompt.kind, "sampling": self.sampling, "options": options}


def check_requests(
    prompts: Sequence[CheckPrompt],
    max_tokens: int,
    seed: int,
    samplings: Mapping[str, Mapping[str, Any]] = SAMPLINGS,
) -> list[CheckRequest]:
    """Returns a request for each prompt and sampling; all samplings of a prompt follow each other."""
    return [
        CheckRequest(number, prompt, sampling, seed + number, max_tokens, asked)
        for number, prompt in enumerate(prompts)
        for sampling, asked in samplings.items()
    ]
