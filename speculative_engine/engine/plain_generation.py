"""Running sequences to their ends with nobody else to serve."""

from __future__ import annotations

from collections.abc import Sequence

from speculative_engine.engine.sequence import SequenceSpec
from speculative_engine.engine.verification_engine import VerificationEngine


def generate_all(engine: VerificationEngine, specs: Sequence[SequenceSpec]) -> list[list[int]]:
    """The tokens that each sequence gets, in the order of `specs`; as many run at once as the engine lets in.

    Raises ValueError for one that could never run.
    """
    tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    for spec in specs:
        engine.add(spec)
    while engine.running:
        for outcome in engine.step().outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
    return [tokens[spec.sequence_id] for spec in specs]
