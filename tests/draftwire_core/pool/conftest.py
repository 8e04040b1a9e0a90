"""Fixtures with a verifier and drafters in this process: the pool is also tested by whole conversations."""

from tests.harness.verifier.fixtures import *  # noqa: F403
