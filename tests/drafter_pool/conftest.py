"""A verifier and drafters in this process: the pool is tested by whole conversations, too."""

from tests.harness.verifier.fixtures import (
    checkpoint,
    listening,
    other_checkpoint,
    patient,
    scripted_drafters_found_nothing_wrong,
    stranger,
    tireless,
    twin,
    verifier,
    what_was_there_before,
)

__all__ = [
    "checkpoint",
    "listening",
    "other_checkpoint",
    "patient",
    "scripted_drafters_found_nothing_wrong",
    "stranger",
    "tireless",
    "twin",
    "verifier",
    "what_was_there_before",
]
