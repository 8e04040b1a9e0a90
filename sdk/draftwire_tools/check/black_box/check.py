"""The check of an endpoint: the same requests repeated, alone and in a batch, with and without speculation."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwire_tools import interruption
from draftwire_tools.bench.machine import machine
from draftwire_tools.check.black_box.endpoint import Endpoint
from draftwire_tools.check.case import Budget
from draftwire_tools.check.comparison import Comparison
from draftwire_tools.check.prompts import CheckPrompt
from draftwire_tools.check.report.certificate import Certificate
from draftwire_tools.check.request import check_requests
from draftwire_tools.progress import Stage

SAMPLINGS = ("greedy", "T=0.8")
"""The samplings that every such endpoint has."""
_KEY = re.compile(r"[\x21-\x7e]+")
_AT_ONCE = 8
"""Requests at once."""
_LIMITS = (
    "seen from outside: only texts and finish reasons are compared, not token ids or log-probabilities, and only of "
    "these requests",
    "whether anything was drafted cannot be seen from outside, unless the endpoint reports it",
)
_UNCOUPLED = (
    "a difference at T=0.8 need not be a fault: an engine that accepts draft tokens by the rule of rejection promises "
    "plain decoding's distribution, not its tokens; a difference under greedy sampling is a change of the output"
)
_NO_PLAIN = (
    "there was no plain decoding to compare with (--reference or --plain-field): equal outputs show that the endpoint "
    "repeats itself, not that speculation changes nothing"
)
_UNSTEADY = (
    "plain decoding itself does not repeat its outputs, so differences with speculation may have the same cause, such "
    "as sums whose order depends on the batch"
)


@dataclass(frozen=True, slots=True)
class BlackBoxCheck:
    """The settings of such a check."""

    endpoint: Endpoint
    """The endpoint with speculation."""
    plain: Endpoint | None
    """The one without."""
    prompts: Sequence[CheckPrompt]
    """One for each request of a case and sampling."""
    max_tokens: int
    """Most tokens of a request."""
    seed: int
    """Seed of the first request."""
    minutes: float
    """The time of the whole check."""
    command: str
    """The command line that repeats the check."""

    @classmethod
    def of(
        cls,
        url: str,
        reference: str | None,
        model: str | None,
        key_file: Path | None,
        plain_field: str | None,
        prompts: Sequence[CheckPrompt],
        max_tokens: int,
        seed: int,
        minutes: float,
        command: str,
        tls: ssl.SSLContext | None = None,
    ) -> BlackBoxCheck:
        """Returns the check for the command's options.

        Raises:
            ValueError: an option is not valid.
            Failure: an endpoint does not answer.
        """
        fields = _fields(plain_field)
        if reference is not None and fields is not None:
            raise ValueError("--plain-field: cannot be combined with --reference")
        key = None if key_file is None else _key(key_file)
        endpoint = Endpoint.of("--openai", url, key, model, tls)
        plain = None
        if reference is not None:
            plain = Endpoint.of("--reference", reference, key, None, tls)
        elif fields is not None:
            plain = endpoint.having(fields)
        return cls(endpoint, plain, prompts, max_tokens, seed, minutes, command)

    def run(self, progress: Stage) -> Certificate:
        """Runs the check.

        progress: called with the name of each part as it begins, and the share of all parts that are done.

        Raises:
            Failure: the first requests fail.
        """
        return interruption.run(self._run(progress))

    async def _run(self, progress: Stage) -> Certificate:
        requests = [
            each for each in check_requests(self.prompts, self.max_tokens, self.seed) if each.sampling in SAMPLINGS
        ]
        comparison = Comparison(requests, Budget(60 * self.minutes, 3 if self.plain is None else 5), progress)
        compare, notes = comparison.compare, list(_LIMITS)
        first = self.plain or self.endpoint
        await comparison.run_plain(first.complete)
        name = "plain decoding" if self.plain is not None else "the endpoint"
        again = await compare(f"{name} again", first.complete)
        batch = await compare(f"{name}, {_AT_ONCE} requests at once", first.complete, batch=_AT_ONCE)
        if self.plain is None:
            notes.append(_NO_PLAIN)
        else:
            await compare("speculation", self.endpoint.complete)
            await compare(f"speculation, {_AT_ONCE} requests at once", self.endpoint.complete, batch=_AT_ONCE)
            if again.differences or batch.differences:
                notes.append(_UNSTEADY)
        if any(each.request["sampling"] != "greedy" for case in comparison.cases for each in case.differences):
            notes.append(_UNCOUPLED)
        about = machine() | {
            "endpoint": f"{self.endpoint.url}, model {self.endpoint.model}",
            "without speculation": "nothing"
            if self.plain is None
            else f"{self.plain.url}, model {self.plain.model}, fields {json.dumps(dict(self.plain.fields))}",
            "requests": f"{len(self.prompts)} per sampling and case, up to {self.max_tokens} tokens, "
            f"seeds from {self.seed}",
        }
        subject = f"{self.endpoint.model} at {self.endpoint.url}"
        return Certificate(subject, about, comparison.cases, notes=notes, commands=[self.command])


def _key(file: Path) -> str:
    """Returns the key in a file. No error shows what else is in it, which HTTP's library would."""
    try:
        key = file.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise ValueError(f"--api-key-file {file}: {error.strerror}") from error
    if not _KEY.fullmatch(key):
        raise ValueError(f"--api-key-file {file}: expected one key of ASCII characters without spaces")
    return key


def _fields(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--plain-field: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"--plain-field: expected a JSON object, got {text}")
    return fields
