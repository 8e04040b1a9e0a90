"""One sequence's place in its grammar: what may come next, after its tokens and after each path of its tree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from llguidance import LLMatcher

from speculative_engine.logits.grammar_library import allows_any
from speculative_engine.logits.logit_editor import TreeRows

_WORTH_A_THREAD = 1e-3
"""Seconds that masks take: below it, waking another thread costs a busy machine more than it saves."""

_USED_UP = "too many states"
"""How the library tells that there is no more room for what copies of a matcher share."""


class TokenMisfitError(ValueError):
    """One of the tokens, `index`, is not allowed after those before it."""

    def __init__(self, index: int):
        super().__init__(f"token {index} is not allowed after those before it")
        self.index = index


class GrammarForm:
    """An OutputForm (see `output_form.OutputForm`).

    What may come next depends on the tokens before it alone, not on how the library came to them: it goes down each
    path of the tree and back again.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        renew: Callable[[], LLMatcher],
        end: int,
        vocab_size: int,
        end_token_ids: Iterable[int],
        helper: ThreadPoolExecutor,
    ):
        """matcher: at the form's beginning; it shares what the library remembers with others of its form. renew: gives
        another one, for when they have used up the room for that. end: the library's token for the end; ids from it on
        are no tokens. end_token_ids: the target's, where they end the output. helper: computes masks that take long
        while the target computes logits."""
        self._matcher = matcher
        self._renew = renew
        self._end = end
        self._vocab_size = vocab_size
        self._end_token_ids = sorted(end_token_ids)
        self._helper = helper
        self._output: list[int] = []
        self._lost = False
        """The library has reached one of its limits with the committed tokens: nothing may come next."""
        self._blocked: torch.Tensor | Future[torch.Tensor] | None = None
        self._seconds = 0.0
        """How long the masks of the last step took."""

    def resume(self, tokens: Sequence[int]) -> None:
        """Begin after these tokens, an end among them. Raises TokenMisfitError."""
        self.commit(tokens)
        taken = len(self._output)
        ends = taken < len(tokens) and tokens[taken] in self._end_token_ids and self._matcher.is_accepting()
        if taken < len(tokens) and not ends:
            raise TokenMisfitError(taken)

    @property
    def ended(self) -> bool:
        """See OutputForm.ended."""
        return self._is_over(self._matcher)

    def ends_after(self, tokens: Sequence[int]) -> int | None:
        """See OutputForm.ends_after."""
        taken = self._follow(tokens)
        if self._begins_anew(self._matcher):
            taken = self._follow(tokens)
        ended = taken > 0 and self.ended
        self._matcher.rollback(taken)
        return taken if ended else None

    def allows(self, tokens: Sequence[int]) -> bool:
        """See OutputForm.allows."""
        if self._lost or max(tokens) >= self._end:
            return False
        return self._matcher.validate_tokens(list(tokens)) == len(tokens)

    def forced(self) -> list[int]:
        """See OutputForm.forced."""
        tokens = [] if self._lost else self._matcher.compute_ff_tokens()
        return tokens[: tokens.index(self._end)] if self._end in tokens else tokens

    def prepare(self, rows: TreeRows) -> None:
        """See LogitEditor.prepare."""
        slow = self._seconds > _WORTH_A_THREAD
        self._blocked = self._helper.submit(self._block, rows) if slow else self._block(rows)

    def edit(self, logits: torch.Tensor, rows: TreeRows) -> None:
        """See LogitEditor.edit."""
        assert self._blocked is not None
        blocked = self._blocked.result() if isinstance(self._blocked, Future) else self._blocked
        logits.masked_fill_(blocked.to(logits.device), -math.inf)

    def commit(self, tokens: Sequence[int]) -> None:
        """See LogitEditor.commit. What comes after the end is no part of the form."""
        for token in tokens:
            taken = self._take(self._matcher, token)
            if self._begins_anew(self._matcher):
                taken = self._take(self._matcher, token)
            if not taken:
                self._lost |= self._matcher.is_error()
                break
            self._output.append(token)

    def _take(self, matcher: LLMatcher, token: int) -> bool:
        return not self._lost and token < self._end and matcher.try_consume_tokens([token]) == 1

    def _is_over(self, matcher: LLMatcher) -> bool:
        if matcher.is_error():
            return False
        if matcher.is_stopped():
            return True
        return matcher.is_accepting() and not allows_any(matcher.compute_bitmask(), self._end)

    def _follow(self, tokens: Sequence[int]) -> int:
        """Take tokens up to the end of the form, or to what is no part of it; how many."""
        taken = 0
        for token in tokens:
            if not self._take(self._matcher, token):
                break
            taken += 1
            if self.ended:
                break
        return taken

    def _begins_anew(self, failed: LLMatcher) -> bool:
        """Leave the state of error, in which a matcher would stay, if it may be that of others of the same form."""
        if self._lost or _USED_UP not in failed.get_error():
            return False
        self._matcher = self._renew()
        self._lost = self._matcher.try_consume_tokens(self._output) < len(self._output)
        return not self._lost

    def _block(self, rows: TreeRows) -> torch.Tensor:
        """For each row [rows, V] the tokens that must not come: none where the row decides nothing."""
        started = time.perf_counter()
        masks = self._masks(rows)
        blocked = np.zeros((len(rows), self._vocab_size), dtype=bool)
        which = list(masks)
        flags = np.unpackbits(
            np.frombuffer(b"".join(masks.values()), dtype=np.uint8).reshape(len(which), -1),
            axis=1,
            bitorder="little",
            count=self._end + 1,
        ).view(bool)
        allowed = np.zeros((len(which), self._vocab_size), dtype=bool)
        width = min(self._end, self._vocab_size)
        allowed[:, :width] = flags[:, :width]
        allowed[:, self._end_token_ids] = flags[:, self._end :]
        blocked[which] = ~allowed
        self._seconds = time.perf_counter() - started
        return torch.from_numpy(blocked)

    def _masks(self, rows: TreeRows) -> dict[int, bytes]:
        """By row a bit for each token that may come. Rows behind tokens that must not come, and those behind the end,
        have none.

        Should the library reach one of its limits, the rows it has not come to allow nothing: where they decide
        anything, the engine asks for them alone.
        """
        masks: dict[int, bytes] = {}
        for _ in range(2):
            # A matcher does not come back from an error, so a tree has one of its own.
            matcher = self._matcher if len(rows) == 1 else self._matcher.deep_copy()
            if not self._lost and self._walk(matcher, rows, masks):
                return masks
            if not self._begins_anew(matcher):
                break
        self._lost |= self._matcher.is_error()
        nothing = bytes((self._end + 32) // 32 * 4)
        return dict.fromkeys(range(len(rows)), nothing) | masks

    def _walk(self, matcher: LLMatcher, rows: TreeRows, masks: dict[int, bytes]) -> bool:
        """Find the masks, path by path; whether no limit was reached."""
        children: list[list[int]] = [[] for _ in rows.parents]
        for row, parent in enumerate(rows.parents[1:], start=1):
            children[parent].append(row)
        taken = 0
        stack = [(0, 0)]
        while stack:
            row, depth = stack.pop()
            decides = True
            if row:
                matcher.rollback(taken - depth + 1)
                taken = depth - 1
                decides = self._take(matcher, rows.tokens[row])
                taken += decides
                decides = decides and not self._is_over(matcher)
            mask = matcher.compute_bitmask() if decides else b""
            if matcher.is_error():
                return False
            if decides:
                masks[row] = mask
                stack.extend((child, depth + 1) for child in children[row])
        return True
