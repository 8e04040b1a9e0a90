"""A verifier and drafters in this process: the pool is tested by whole conversations, too."""

from tests.harness.verifier.fixtures import *  # noqa: F403
