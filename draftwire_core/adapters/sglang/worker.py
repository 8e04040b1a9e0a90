"""The worker that SGLang's scheduler calls for each step: SGLang's NGRAM worker with drafts from the pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.version import __version__

from draftwire_core.adapters.common.draft_tree import DraftTree
from draftwire_core.adapters.common.target_info import fingerprint_of, target_info
from draftwire_core.adapters.sglang.remote_drafts import RemoteDrafts
from draftwire_core.adapters.sglang.server_arguments import unknown_version
from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.adapters.sglang.verify_arrays import tree_mask, verify_arrays
from draftwire_core.runtime.process.logs import configure_logs, get_logger
from draftwire_core.runtime.process.settings import settings_from_environment

log = get_logger(__name__)

_LOGGERS = ("draftwire", "draftwire_core")
"""Loggers that the adapter configures; SGLang configures its own."""


class RemoteDraftWorker(NGRAMWorker):  # type: ignore[misc]
    """SGLang's NGRAM worker, which verifies irregular trees of draft tokens, with the pool in place of its corpus.

    Only the first tensor-parallel rank has a pool; it sends its drafts to the other ranks.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        """Takes the arguments of NGRAMWorker. Raises SettingsError for invalid DRAFTWIRE_SGLANG_* variables."""
        super().__init__(*args, **kwargs)
        self._settings = settings_from_environment(SglangSettings)
        self._group = get_parallel().tp_group
        self._drafts: RemoteDrafts | None = None

    @property
    def drafts(self) -> RemoteDrafts | None:
        """The drafts of this process; None in ranks that are sent them, and until memory is allocated."""
        return self._drafts

    def alloc_memory_pool(self, **kwargs: Any) -> None:
        """Allocates NGRAM's tensors, then starts the drafter pool. Raises StartupError if it cannot be served."""
        super().alloc_memory_pool(**kwargs)
        if self._group.rank_in_group != 0:
            return
        configure_logs(self._settings.log_format, self._settings.log_level, names=_LOGGERS)
        problem = unknown_version(__version__)
        if problem is not None:
            log.warning("SGLang version not tested", problem=problem)
        target = self.target_worker
        config, tokenizer = target.model_config, getattr(target, "tokenizer", None)
        info = target_info(
            str(config.model_path),
            config.hf_config.architectures,
            vocab_size=config.vocab_size,
            context_length=config.context_len,
            dtype=config.dtype,
            device=self.device,
            tokenizer_sha256="" if tokenizer is None else fingerprint_of(tokenizer, str(config.model_path)),
        )
        trees = int(get_spec().speculative_eagle_topk) > 1
        drafts = RemoteDrafts(self._settings, info, self.max_batch_size, self.draft_token_num, trees=trees)
        drafts.pool.start()
        self._drafts = drafts

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a step. One that computes prompts is noted first, so that drafters read them meanwhile."""
        if self._drafts is not None and batch.forward_mode.is_extend():
            self._drafts.prompts(batch.reqs)
        return super().forward_batch_generation(batch, *args, **kwargs)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """Called by SGLang when a request ends."""
        if self._drafts is not None:
            self._drafts.finished(rid)
        super().note_request_finished(rid=rid, natural_stop=natural_stop)

    def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns tokens, int64 [requests x rows], and mask, bool [requests x rows x rows], of the step to verify."""
        ahead = self._accepted_ahead(batch)
        last = [_last_token(request, added) for request, added in zip(batch.reqs, ahead, strict=True)]
        trees = [DraftTree() for _ in last] if self._drafts is None else self._drafts.drafts(batch.reqs, ahead)
        arrays = self._of_the_first_rank(verify_arrays(last, trees, self.draft_token_num))
        tokens, parents = arrays
        return tokens.reshape(-1), tree_mask(parents).reshape(-1)

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Does nothing: the corpus is not used."""

    def _accepted_ahead(self, batch: Any) -> list[list[int]]:
        """Returns for each request the tokens that its output lacks: with overlapped scheduling those of the last
        step, otherwise none."""
        if get_schedule().disable_overlap_schedule or batch.grammar_needs_sync():
            return [[] for _ in batch.reqs]
        counts = batch.spec_info.accept_lens.tolist()
        rows = batch.spec_info.accept_tokens.reshape(len(counts), self.draft_token_num).tolist()
        return [tokens[:count] for tokens, count in zip(rows, counts, strict=True)]

    def _of_the_first_rank(self, arrays: np.ndarray) -> np.ndarray:
        """Returns the arrays of the first tensor-parallel rank, in all ranks."""
        if self._group.world_size > 1:
            torch.distributed.broadcast(torch.from_numpy(arrays), src=self._group.ranks[0], group=self._group.cpu_group)
        return arrays


def _last_token(request: Any, ahead: Sequence[int]) -> int:
    for tokens in (ahead, request.output_ids, request.origin_input_ids_unpadded):
        if len(tokens):
            return int(tokens[-1])
    raise ValueError(f"request {request.rid}: no tokens")
