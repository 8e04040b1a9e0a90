"""A target model that is served: the client of its verifiers, and their description of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from draftwire import AsyncClient, ChatFormat, DraftwireError, VerifierInfo
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

_FRESH_SECONDS = 10.0
"""Time after which a verifier restarted with another model is noticed."""
_OLD_SECONDS = 60.0
"""Time without a request after which the next one waits for the answer, which may be of another model by then."""
_ASK_SECONDS = 5.0
_LOAD_FRESH_SECONDS = 0.2
"""Time for which reported loads are used again: each endpoint picker of Kubernetes asks twenty times a second."""
_LOAD_ASK_SECONDS = 1.0
_MOST_FORMATS = 256


class ServedModel:
    """Asks the verifiers for their model and caches the answer for a while."""

    def __init__(self, client: AsyncClient) -> None:
        """client: a client of the verifiers, which the caller closes."""
        self.client = client
        self._info: VerifierInfo | None = None
        self._asked = 0.0
        self._asking: asyncio.Task[VerifierInfo] | None = None
        self._loads: asyncio.Task[list[VerifierInfo]] | None = None
        self._loads_asked = 0.0
        self._formats: dict[bytes, ChatFormat | None] = {}
        """Formats with variables for the chat template, by these."""
        self._formats_beside: ChatFormat | None = None
        """The format without variables of the model that they belong to."""
        self.since = int(time.time())
        """Start of serving, in seconds of Unix time."""

    async def info(self) -> VerifierInfo:
        """Returns the verifier's description. Only the first request, and one after a pause, waits for it; others get
        the last known one, as do all if the verifier cannot be asked.

        Raises:
            DraftwireError: none is known yet, and the verifier cannot be asked.
        """
        age = time.monotonic() - self._asked
        if self._info is None or age > _FRESH_SECONDS:
            asking = self._asking or self._begin_to_ask()
            if self._info is None:
                return await asyncio.shield(asking)
            if age > _OLD_SECONDS:
                with suppress(DraftwireError):  # is in the log already
                    return await asyncio.shield(asking)
        return self._info

    async def adapters(self) -> list[str]:
        """Returns the names of the target's LoRA adapters; none if the verifiers cannot be asked."""
        try:
            capabilities = (await self.info()).capabilities
        except DraftwireError:  # is in the log already
            return []
        return capabilities.adapters if capabilities is not None else []

    async def chat_format(self, variables: Mapping[str, Any]) -> ChatFormat | None:
        """Returns the format of answers to conversations with these variables for the chat template.

        Raises:
            DraftwireError: the verifier cannot be asked, or refuses a variable.
        """
        usual = (await self.info()).chat_format
        if not variables:
            return usual
        if self._formats_beside != usual or len(self._formats) >= _MOST_FORMATS:
            self._formats = {}
            self._formats_beside = usual
        key = hashlib.sha256(json.dumps(variables, sort_keys=True).encode()).digest()
        formats = self._formats  # of this model, whatever comes while the verifier is asked
        if key not in formats:
            told = await self.client.model_info(chat_template_kwargs=variables, timeout=_ASK_SECONDS)
            formats[key] = told.chat_format
        return formats[key]

    async def loads(self) -> list[VerifierInfo]:
        """Returns what each verifier reports about itself now. Verifiers that do not answer are left out; so are lost
        ones, unless all are lost."""
        fresh = time.monotonic() - self._loads_asked < _LOAD_FRESH_SECONDS
        if self._loads is None or (self._loads.done() and not fresh):
            self._loads_asked = time.monotonic()
            self._loads = asyncio.create_task(self._ask_for_loads())
        return await asyncio.shield(self._loads)

    async def _ask_for_loads(self) -> list[VerifierInfo]:
        known = self.client.verifiers
        asked = [each.address for each in known if each.reachable] or [each.address for each in known]
        answers = await asyncio.gather(
            *(self.client.model_info(address=each, timeout=_LOAD_ASK_SECONDS) for each in asked),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, DraftwireError):
                raise answer
        return [answer for answer in answers if isinstance(answer, VerifierInfo)]

    def _begin_to_ask(self) -> asyncio.Task[VerifierInfo]:
        asking = self._asking = asyncio.create_task(self._ask())
        asking.add_done_callback(self._was_asked)
        return asking

    async def _ask(self) -> VerifierInfo:
        self._info = await self.client.model_info(timeout=_ASK_SECONDS)
        self._asked = time.monotonic()
        return self._info

    def _was_asked(self, asking: asyncio.Task[VerifierInfo]) -> None:
        self._asking = None
        if not asking.cancelled() and (error := asking.exception()) is not None:
            log.warning("cannot read the verifier's model info", error=str(error))

    async def fingerprint(self) -> str:
        """Returns the fingerprint of the target model and its numerics; with the same one, a seed gives the same
        tokens."""
        info = await self.info()
        return system_fingerprint(info.fingerprint, info.numerics)


def system_fingerprint(fingerprint: str, numerics: str) -> str:
    """Returns both fingerprints combined in OpenAI's form; without numerics the model's alone."""
    both = hashlib.sha256(f"{fingerprint} {numerics}".encode()).hexdigest() if numerics else fingerprint
    return f"fp_{both[:16]}"
