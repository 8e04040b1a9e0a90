"""The size limits of a verification engine."""

from dataclasses import dataclass

from draftwire_core.engine.planning.pace import PLAIN_SHARE


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The size limits of the engine."""

    max_sequences: int = 64
    """Most sequences running at once; further ones wait."""
    max_step_rows: int = 256
    """Most tokens in one forward pass."""
    max_tree_nodes: int = 64
    """Most live nodes of one drafter in a sequence's tree, and most nodes verified for a sequence in one step."""
    plain_share: float = PLAIN_SHARE
    """Share of its plain pace that each sequence keeps next to the drafts of others, from 0 (none) to 1."""
    prefix_cache: bool = False
    """Whether sequences that begin with the same tokens share their KV slots, even if one ends before another
    begins."""
