"""Tests that configure the product's logs leave them as they were: other tests of the same process use them as well."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

LOGGERS = ("draftwire", "draftwire_core")
"""Loggers that the adapters configure; services configure the root."""


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Restores the loggers of the product's packages, and structlog's configuration."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(each.handlers, each.level, each.propagate) for each in loggers]
    configuration = structlog.get_config()
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        if logger.handlers is not handlers:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
    if structlog.get_config() != configuration:
        structlog.configure(**configuration)
