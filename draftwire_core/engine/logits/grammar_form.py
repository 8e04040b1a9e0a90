"""One sequence's position in its grammar, and the tokens allowed after it and after each path of its tree."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from llguidance import LLMatcher

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.logits.grammar import Grammar
from draftwire_core.engine.logits.grammar_library import allows_any
from draftwire_core.engine.logits.logit_editor import TreeRows

_WORTH_A_THREAD = 1e-3
"""Seconds of mask computation below which waking another thread costs a busy machine more than it saves."""

_USED_UP = "too many states"
"""Part of the library's error message when the states shared by copies of a matcher have reached their limit."""


class TokenMisfitError(ValueError):
    """Raised if the token at `index` is not allowed after those before it."""

    def __init__(self, index: int):
        super().__init__(f"token {index} is not allowed after the preceding ones")
        self.index = index


class GrammarForm:
    """A grammar's `OutputForm` for one sequence.

    The allowed tokens depend only on the tokens before them, not on the order in which the matcher visits the paths of
    the tree.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        renew: Callable[[], LLMatcher],
        end: int,
        vocab_size: int,
        end_token_ids: Iterable[int],
        helper: ThreadPoolExecutor,
        *,
        grammar: Grammar,
        left_out: tuple[str, ...] = (),
    ):
        """matcher: at the form's beginning; it shares the library's states with other matchers of the form. renew:
        returns a new matcher for when these states have reached their limit. end: the library's token for the end; ids
        from it on are not tokens. end_token_ids: the target's tokens that end the output. helper: computes slow masks
        while the target computes logits. grammar: the form as the request has it. left_out: places of the form's parts
        that are not enforced."""
        self.grammar = grammar
        self.left_out = left_out
        self._matcher = matcher
        self._renew = renew
        self._end = end
        self._vocab_size = vocab_size
        # A checkpoint may name end tokens that its vocabulary lacks.
        self._end_token_ids = sorted(token for token in end_token_ids if token < vocab_size)
        self._helper = helper
        self._output: list[int] = []
        self._lost = False
        """Whether the library has reached a limit on the committed tokens, so that no token is allowed."""
        self._blocked: torch.Tensor | Future[torch.Tensor] | None = None
        self._seconds = 0.0
        """Time that the masks of the last step took."""

    def resume(self, tokens: Sequence[int]) -> None:
        """Continues after tokens generated earlier, which may include an end token. Raises TokenMisfitError."""
        self.commit(tokens)
        taken = len(self._output)
        ends = taken < len(tokens) and tokens[taken] in self._end_token_ids and self._matcher.is_accepting()
        if taken < len(tokens) and not ends:
            raise TokenMisfitError(taken)

    @property
    def ended(self) -> bool:
        """Whether the output is complete; see OutputForm.ended."""
        return self._is_over(self._matcher)

    def ends_after(self, tokens: Sequence[int]) -> int | None:
        """Number of these tokens that complete the output, or None; see OutputForm.ends_after."""
        taken = self._follow(tokens)
        if self._begins_anew(self._matcher):
            taken = self._follow(tokens)
        ended = taken > 0 and self.ended
        self._matcher.rollback(taken)
        return taken if ended else None

    def allows(self, tokens: Sequence[int]) -> bool:
        """Whether the form allows these tokens next; see OutputForm.allows."""
        if self._lost or max(tokens) >= self._end:
            return False
        return self._matcher.validate_tokens(list(tokens)) == len(tokens)

    def forced(self) -> list[int]:
        """The next tokens, as long as there is no choice; see OutputForm.forced."""
        tokens = [] if self._lost else self._matcher.compute_ff_tokens()
        return tokens[: tokens.index(self._end)] if self._end in tokens else tokens

    def prepare(self, rows: TreeRows) -> None:
        """Computes the rows' masks, on the helper if the last ones were slow; see LogitEditor.prepare."""
        slow = self._seconds > _WORTH_A_THREAD
        self._blocked = self._helper.submit(self._block, rows) if slow else self._block(rows)

    def edit(self, logits: torch.Tensor, rows: TreeRows) -> None:
        """Sets the logits of disallowed tokens to -inf; see LogitEditor.edit."""
        assert self._blocked is not None
        blocked = self._blocked.result() if isinstance(self._blocked, Future) else self._blocked
        logits.masked_fill_(to_device(blocked, logits.device), -math.inf)

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens; those after the end of the form are ignored. See LogitEditor.commit."""
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
        """Consumes tokens up to the end of the form, or to one that it does not allow; returns their number."""
        taken = 0
        for token in tokens:
            if not self._take(self._matcher, token):
                break
            taken += 1
            if self.ended:
                break
        return taken

    def _begins_anew(self, failed: LLMatcher) -> bool:
        """Replaces the matcher if `failed` has reached the limit of the shared states; returns whether it succeeded.

        A matcher never recovers from an error.
        """
        if self._lost or _USED_UP not in failed.get_error():
            return False
        self._matcher = self._renew()
        self._lost = self._matcher.try_consume_tokens(self._output) < len(self._output)
        return not self._lost

    def _block(self, rows: TreeRows) -> torch.Tensor:
        """Mask of the disallowed tokens of each row, bool [rows, V]; empty in rows that decide nothing."""
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
        allowed[:, self._end_token_ids] |= flags[:, self._end :]  # a form may name such a token, too
        blocked[which] = ~allowed
        self._seconds = time.perf_counter() - started
        return torch.from_numpy(blocked)

    def _masks(self, rows: TreeRows) -> dict[int, bytes]:
        """Masks of the allowed tokens by row, a bit each. Rows after a disallowed token or after the end have none.

        If the library reaches a limit, the rows not yet visited allow nothing. If such a row matters, the engine asks
        for it alone.
        """
        masks: dict[int, bytes] = {}
        for _ in range(2):
            # A matcher does not recover from an error, so a tree is walked with a copy.
            matcher = self._matcher if len(rows) == 1 else self._matcher.deep_copy()
            if not self._lost and self._walk(matcher, rows, masks):
                return masks
            if not self._begins_anew(matcher):
                break
        self._lost |= self._matcher.is_error()
        nothing = bytes((self._end + 32) // 32 * 4)
        return dict.fromkeys(range(len(rows)), nothing) | masks

    def _walk(self, matcher: LLMatcher, rows: TreeRows, masks: dict[int, bytes]) -> bool:
        """Adds the masks, path by path; returns whether no limit was reached."""
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
