"""Fixtures with a verifier and drafters in this process: the pool is also tested by whole conversations.

The event loop is uvloop's, as in the services: asyncio's differs in places, such as what is known of a timer.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.harness.verifier.fixtures import *  # noqa: F403


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
