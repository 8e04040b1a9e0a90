"""The drafts for SGLang's steps: its requests as the drafter pool sees them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire_core.adapters.common.adapted_request import AdaptedOrder
from draftwire_core.adapters.common.draft_tree import DraftTree
from draftwire_core.adapters.common.metrics import Faults
from draftwire_core.adapters.common.pool_thread import PoolThread
from draftwire_core.adapters.sglang.request_tokens import RequestTokens
from draftwire_core.adapters.sglang.settings import SglangSettings

_KNOWN = 4
"""Most requests that are remembered, as a multiple of those of a step."""


class RemoteDrafts:
    """The draft trees that the pool's drafters have proposed in time for SGLang's requests.

    SGLang's scheduler calls it in its single thread and ends if it raises. So once started it never raises: it counts
    the fault and drafts nothing. A request is SGLang's `Req`.
    """

    def __init__(self, settings: SglangSettings, info: ModelInfo, most_requests: int, rows: int, *, trees: bool):
        """info: the target model. most_requests: most requests in a step. rows: rows of each request in a step, its
        last committed token among them. trees: whether trees are verified; otherwise chains."""
        self.faults = Faults()
        """Number of faults by exception name."""
        self.pool = PoolThread(settings, info, most_requests, rows - 1, self.faults, fixed_rows=True)
        self._wait = 1e-3 * settings.max_wait_ms
        self._longest = info.context_length
        self._most_known = _KNOWN * most_requests
        self._rows = rows
        self._trees = trees
        self._tokens: dict[str, RequestTokens] = {}
        self._step = 0
        self._verified: list[str] = []
        """Requests of the last step; each of their drafts was verified."""
        self._returned: float | None = None
        """When the last step was given its drafts; None if another kind of step followed."""

    def prompts(self, requests: Iterable[Any]) -> None:
        """Notes requests whose prompts the coming step computes, so that drafters read them meanwhile."""
        if not self.pool.alive:
            return
        try:
            self._returned = None
            for request in requests:
                self._begin(request)
        except Exception as error:  # noqa: BLE001 - noted; an exception here would end SGLang's scheduler
            self.faults.note(error)

    def drafts(self, requests: Sequence[Any], ahead: Sequence[Sequence[int]]) -> list[DraftTree]:
        """Returns the draft tokens for the coming step, a tree for each of its requests; empty if none are there.

        ahead: for each request, the tokens that the last step accepted and SGLang has not added to its output yet.
        """
        nothing = [DraftTree() for _ in requests]
        if not self.pool.alive:
            return nothing
        try:
            return self._drafts(requests, ahead)
        except Exception as error:  # noqa: BLE001 - noted; an exception here would end SGLang's scheduler
            self.faults.note(error)
            return nothing

    def finished(self, request_id: str) -> None:
        """Drops a request that has ended."""
        if self._tokens.pop(request_id, None) is not None:
            self.pool.mirror.end([request_id])

    def _begin(self, request: Any) -> RequestTokens:
        """Returns the request's tokens; begins it if it is new, or another one of the same id."""
        known = self._tokens.get(request.rid)
        if known is not None and known.belongs_to(request.origin_input_ids_unpadded):
            return known
        if len(self._tokens) >= self._most_known:
            self._forget_all_but(self._verified)
        known = self._tokens[request.rid] = RequestTokens(request.origin_input_ids_unpadded)
        if request.input_embeds is None:
            self.pool.mirror.begin(self._order(request), known.update(request.output_ids, ()).tolist())
        return known

    def _forget_all_but(self, request_ids: Iterable[str]) -> None:
        """Forgets the tokens of requests whose ends were never reported; the mirror drops idle ones itself."""
        kept = set(request_ids)
        self._tokens = {each: tokens for each, tokens in self._tokens.items() if each in kept}

    def _drafts(self, requests: Sequence[Any], ahead: Sequence[Sequence[int]]) -> list[DraftTree]:
        now = time.perf_counter()
        mirror = self.pool.mirror
        if self._returned is not None:
            mirror.cost.observe(self._rows * len(self._verified), now - self._returned)
        mirror.verify(dict.fromkeys(self._verified, self._rows - 1))
        self._step += 1
        asked: dict[int, str] = {}
        for place, (request, added) in enumerate(zip(requests, ahead, strict=True)):
            tokens = self._begin(request).update(request.output_ids, added)
            if request.input_embeds is None:
                mirror.commit(self._step, request.rid, tokens, partial(self._order, request))
                asked[place] = request.rid
        found = mirror.trees(list(asked.values()), 0, now + self._wait, chains=not self._trees)
        trees = [DraftTree() for _ in requests]
        for place, tree in zip(asked, found, strict=True):
            trees[place] = tree
        self._verified = [request.rid for request in requests]
        self._returned = time.perf_counter()
        return trees

    def _order(self, request: Any) -> AdaptedOrder:
        most = request.sampling_params.max_new_tokens
        longest = self._longest
        if most is not None:
            longest = min(longest, len(request.origin_input_ids_unpadded) + int(most))
        return AdaptedOrder(request.rid, longest)
