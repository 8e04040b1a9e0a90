"""Sizes of a verifying engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of the engine."""

    max_sequences: int = 64
    """Most sequences that run at once; more wait."""
    max_step_rows: int = 256
    """Most tokens of one forward pass."""
    max_tree_nodes: int = 64
    """Most live nodes of one drafter in a sequence's tree, and most nodes verified for a sequence in one step."""
    prefix_cache: bool = False
    """Whether sequences that begin with the same tokens share their KV slots, also when one ends before another
    begins."""
