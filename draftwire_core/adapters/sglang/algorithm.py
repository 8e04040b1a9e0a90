"""SGLang's description of the algorithm: NGRAM's verification, with other drafts."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from draftwire_core.adapters.sglang.server_arguments import complete


class RemoteDraftAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """The algorithm as SGLang's scheduler and model runner see it.

    NGRAM is SGLang's own algorithm whose drafts come from the host as irregular trees. What remote drafters propose is
    just that, so all that SGLang does for NGRAM between draft and output is used as it is.
    """

    def is_ngram(self) -> bool:
        """Returns True: its batches, graphs and results are those of NGRAM."""
        return True

    def has_draft_kv(self) -> bool:
        """Returns False: no draft model writes keys and values here."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """Returns False: no draft model reads the target's hidden states here."""
        return False

    def need_topk(self) -> bool:
        """Returns False: nothing is relayed from step to step but the accepted tokens."""
        return False

    def create_future_map(
        self,
        device: Any,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> Any:
        """Makes the relay of a step's results to the next step, as built-in algorithms do."""
        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Completes the server's arguments. Raises ValueError for those that do not fit."""
        complete(server_args)


def worker_class(server_args: Any) -> type:
    """Returns the class of the worker that the scheduler calls; imported late, as it needs SGLang's kernels."""
    from draftwire_core.adapters.sglang.worker import RemoteDraftWorker

    return RemoteDraftWorker
