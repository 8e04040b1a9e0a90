"""Log-probabilities of prompt tokens, taken from the passes that compute the prompts."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.sampling.log_probs import LogProbs, log_probs


class PromptLogProbs:
    """The rows of one step that yield prompt log-probabilities. Nothing of vocabulary size outlives the step."""

    def __init__(self, jobs: Iterable[VerificationJob], builder: BatchBuilder):
        """Requests the rows' logits as the last ones of the batch, after the jobs have been laid out."""
        self._parts: list[tuple[VerificationJob, range]] = []
        for job in jobs:
            sequence = job.sequence
            if sequence.spec.prompt_logprobs is None:
                continue
            start = len(sequence.slots)
            # A token's row yields the next token's distribution. Positions reported before a preemption are skipped.
            begin = max(start, sequence.told - 1)
            end = min(start + len(job.chain_rows), len(sequence.spec.tokens) - 1)
            if begin < end:
                for position in range(begin, end):
                    builder.want(job.chain_rows[position - start])
                self._parts.append((job, range(begin + 1, end + 1)))

    def settle(self, logits: Tensor) -> dict[int, LogProbs]:
        """Returns the log-probabilities of each prompt's next tokens, by sequence; logits: all that the batch
        requested."""
        told: dict[int, LogProbs] = {}
        first = len(logits) - sum(len(positions) for _, positions in self._parts)
        for job, positions in self._parts:
            sequence, spec = job.sequence, job.sequence.spec
            rows = logits[first : first + len(positions)]
            first += len(positions)
            tokens = spec.tokens[positions.start : positions.stop]
            assert spec.prompt_logprobs is not None, "sequences without prompt_logprobs have no part"
            told[spec.sequence_id] = log_probs(rows, tokens, spec.prompt_logprobs)
            sequence.told = positions.stop
        return told
