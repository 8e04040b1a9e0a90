"""Requests that a test holds in the middle, and calls that fail."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from draftwire_core.runtime.errors import ServiceError
from tests.harness.services.in_process_verifier import PATIENCE, InProcessVerifier, order


async def failure(call: Awaitable[Any]) -> tuple[str, str]:
    """Returns code and reason of a call that fails."""
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ServiceError) as caught:
            await call
    return caught.value.code.name, caught.value.reason_name


class Running:
    """A request that is held back after its first step."""

    def __init__(self, verifier: InProcessVerifier, **fields: Any) -> None:
        self.verifier = verifier
        self.request = order(**fields)

    async def __aenter__(self) -> "Running":
        self.plain = await self.verifier.plain(self.request)
        self.verifier.engine.hold(1)
        self.task = asyncio.create_task(self.verifier.generate(self.request))
        await self.verifier.until(lambda: self.verifier.engine._permits == 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.verifier.engine.go_on()
        output = await self.task
        assert output.token_ids == self.plain.token_ids
        self.output = output
