"""An OpenAI-compatible endpoint: completions by HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import partial
from typing import Any

from draftwire._types.speculation import NO_SPECULATION, SpeculationStats
from draftwire.cli.failure import Failure
from draftwire.errors import AtCapacityError
from draftwire_tools.check.output import Output
from draftwire_tools.check.request import SAMPLINGS, CheckRequest

_SECONDS = 600.0
_SHOWN = 200
"""Characters of an error that are shown."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The endpoint that completions come from, and the fields that each request has there."""

    url: str
    """The URL that ``/completions`` is below."""
    key: str | None = field(default=None, repr=False)
    """The API key."""
    model: str = ""
    """The model's name."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """The authorities that an HTTPS endpoint's certificate is checked by; None for the system's."""

    @classmethod
    def of(
        cls, option: str, url: str, key: str | None, model: str | None, tls: ssl.SSLContext | None = None
    ) -> Endpoint:
        """Returns the endpoint at a URL, with the model of this name or the first one that it lists.

        Raises:
            ValueError: the URL is not one.
            Failure: the endpoint does not answer, or lists no model.
        """
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{option} {url}: expected a URL, such as http://host:8000/v1")
        base = url.rstrip("/").removesuffix("/completions").removesuffix("/chat")
        version = urllib.parse.urlsplit(base).path.rpartition("/")[2]
        base = base if version.startswith("v") else f"{base}/v1"
        made = cls(base, key, model or "", tls=tls)
        if model is None:
            listed = made._ask("/models", None).get("data")
            if not isinstance(listed, list) or not listed or not isinstance(listed[0], dict) or "id" not in listed[0]:
                raise Failure(f"{option} {url}: lists no model; name one by --model")
            made = replaced(made, model=str(listed[0]["id"]))
        return made

    def having(self, fields: Mapping[str, Any]) -> Endpoint:
        """Returns the same endpoint with further fields in each request."""
        return replaced(self, fields={**self.fields, **fields})

    async def complete(self, request: CheckRequest) -> tuple[Output, SpeculationStats]:
        """Runs a request. Its output has no token ids, unless the endpoint reports them.

        Raises:
            AtCapacityError: it has no room for the request, as by a limit of its rate.
            Failure: the endpoint does not answer, or answers with something else.
        """
        body = {
            "model": self.model,
            "prompt": request.prompt.text,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            **SAMPLINGS[request.sampling],
            **self.fields,
        }
        answer = await _in_thread(partial(self._ask, "/completions", body))
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise Failure(f"{self.url}/completions: the answer has no choices")
        choice = choices[0]
        output = Output((), (), str(choice.get("text", "")), str(choice.get("finish_reason")), ())
        return output, _stats(answer.get("speculation"))

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the JSON object that answers a GET, or a POST of a body.

        Raises:
            Failure: the endpoint does not answer, or answers with something else.
        """
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {self.key}"} if self.key else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS, context=self.tls) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                told = error.read(4096).decode(errors="replace")[:_SHOWN]
            kind = AtCapacityError if error.code == http.HTTPStatus.TOO_MANY_REQUESTS else Failure
            raise kind(f"{self.url}{path} answered {error.code}: {told}") from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError around the reason
            raise Failure(f"{self.url}{path} does not answer: {getattr(error, 'reason', error)}") from error
        except ValueError as error:
            raise Failure(f"{self.url}{path}: the answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise Failure(f"{self.url}{path}: the answer is not a JSON object")
        return answer


async def _in_thread(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns what ``ask`` returns, called by a thread that nobody waits for if Ctrl-C ends the check; an endpoint may
    not answer for minutes."""
    answered: Future[dict[str, Any]] = Future()
    answered.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answered.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is awaited
            answered.set_exception(error)

    threading.Thread(target=run, name="check-request", daemon=True).start()
    return await asyncio.wrap_future(answered)


def _stats(report: Any) -> SpeculationStats:
    """Returns the statistics that draftwire's gateway reports; those of other endpoints are empty."""
    if not isinstance(report, dict):
        return NO_SPECULATION
    drafted, accepted = (int(report.get(name, 0)) for name in ("draft_tokens", "accepted_tokens"))
    return replaced(NO_SPECULATION, draft_tokens=drafted, accepted_tokens=accepted)
