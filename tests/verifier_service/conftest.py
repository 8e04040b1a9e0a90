"""Fixtures with a verifier and drafters in this process."""

from tests.harness.verifier.fixtures import *  # noqa: F403
