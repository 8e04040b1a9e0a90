"""Logits processors: the editors for a request's changes to the logits, except penalties and forms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.logits.logit_changes import LogitChanges
from draftwire_core.engine.logits.logit_editor import LogitEditor, TreeRows
from draftwire_core.engine.logits.penalties import Penalties


class ConstantEditor:
    """Base of editors that change every row alike, whatever its text; everything of a LogitEditor but `edit`."""

    def prepare(self, rows: TreeRows) -> None:
        """Does nothing, since no change depends on the rows."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Does nothing, since no change depends on the tokens."""


class LogitBias(ConstantEditor):
    """Adds a request's biases to the logits of tokens."""

    def __init__(self, bias: Mapping[int, float]):
        """bias: by token id."""
        self._ids = torch.tensor(list(bias), dtype=torch.int64)
        self._bias = torch.tensor(list(bias.values()), dtype=torch.float32)

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Adds the biases."""
        self._ids, self._bias = _once(self._ids, logits), _once(self._bias, logits)
        logits.index_add_(1, self._ids, self._bias.expand(len(rows), -1))


class AllowedTokens(ConstantEditor):
    """Masks all tokens except the allowed ones."""

    def __init__(self, token_ids: Iterable[int]):
        self._ids = torch.tensor(list(token_ids), dtype=torch.int64).unique()

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Sets the logits of all other tokens to -inf."""
        self._ids = _once(self._ids, logits)
        allowed = logits.index_select(1, self._ids)
        logits.fill_(-torch.inf).index_copy_(1, self._ids, allowed)


class BannedTokens(ConstantEditor):
    """Masks banned tokens."""

    def __init__(self, token_ids: Iterable[int]):
        self._ids = torch.tensor(list(token_ids), dtype=torch.int64).unique()

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Sets the logits of the banned tokens to -inf."""
        self._ids = _once(self._ids, logits)
        logits.index_fill_(1, self._ids, -torch.inf)


class BadWords:
    """Masks the last token of a bad word where the output ends with all of the word's other tokens."""

    def __init__(self, words: Iterable[Sequence[int]], output: Sequence[int]):
        """words: of at least two tokens each; output: tokens committed so far."""
        self._last: dict[tuple[int, ...], set[int]] = {}
        for word in words:
            self._last.setdefault(tuple(word[:-1]), set()).add(word[-1])
        self._lengths = sorted({len(begun) for begun in self._last})
        self._tail: list[int] = []
        """The last committed output tokens, as many as the longest word needs."""
        self._masked: list[tuple[int, int]] = []
        """Pairs of a row and a token that is masked in it."""
        self.commit(output)

    def prepare(self, rows: TreeRows) -> None:
        """Finds the tokens to mask in each row."""
        self._masked = []
        for row in range(len(rows)):
            text = tuple(self._tail + rows.path(row))
            for length in self._lengths:
                if length <= len(text):
                    self._masked += [(row, token) for token in self._last.get(text[-length:], ())]

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Sets the logits of the tokens that `prepare` found to -inf."""
        if self._masked:
            places = to_device(torch.tensor(self._masked, dtype=torch.int64), logits.device)
            logits[places[:, 0], places[:, 1]] = -torch.inf

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the end of the output."""
        self._tail = [*self._tail, *tokens][-self._lengths[-1] :]


class MinTokens:
    """Masks tokens that end the output until it has its least length.

    The length of a row's output is that of the committed output plus that of the row's path.
    """

    def __init__(self, least: int, ends: Iterable[int], output_length: int):
        """least: fewest tokens of the output; ends: tokens that end it; output_length: tokens committed so far."""
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64)
        self._missing = least - output_length
        self._rows = torch.empty(0, dtype=torch.int64)

    def prepare(self, rows: TreeRows) -> None:
        """Finds the rows whose output is too short to end."""
        missing: list[int] = []
        for parent in rows.parents:
            missing.append(missing[parent] - 1 if parent >= 0 else self._missing)
        self._rows = torch.tensor([row for row, tokens in enumerate(missing) if tokens > 0], dtype=torch.int64)

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Sets the logits of the ending tokens to -inf in the rows that `prepare` found."""
        if len(self._rows):
            # A checkpoint may name end tokens that its vocabulary lacks.
            if self._ends.device.type == "cpu":
                self._ends = to_device(self._ends[self._ends < logits.shape[1]], logits.device)
            logits[to_device(self._rows, logits.device).unsqueeze(1), self._ends] = -torch.inf

    def commit(self, tokens: Sequence[int]) -> None:
        """Counts the committed tokens."""
        self._missing -= len(tokens)


def _once(numbers: Tensor, logits: Tensor) -> Tensor:
    """An editor's numbers on the device of the logits, copied there the first time."""
    return numbers if numbers.device == logits.device else to_device(numbers, logits.device)


def editors_of(
    changes: LogitChanges, prompt: Sequence[int], output: Sequence[int], ends: Collection[int]
) -> tuple[LogitEditor, ...]:
    """Returns the editors that one sequence needs, in the order in which they apply.

    output: tokens committed so far. ends: tokens that end the output.
    """
    editors: list[LogitEditor] = []
    if changes.repetition_penalty != 1 or changes.presence_penalty or changes.frequency_penalty:
        editors.append(Penalties(changes, prompt, output))
    if changes.logit_bias:
        editors.append(LogitBias(changes.logit_bias))
    if changes.allowed_token_ids:
        editors.append(AllowedTokens(changes.allowed_token_ids))
    banned = {*changes.banned_token_ids, *(word[0] for word in changes.bad_words if len(word) == 1)}
    if banned:
        editors.append(BannedTokens(banned))
    spelled = [word for word in changes.bad_words if len(word) > 1]
    if spelled:
        editors.append(BadWords(spelled, output))
    if changes.min_tokens > len(output) and ends:
        editors.append(MinTokens(changes.min_tokens, ends, len(output)))
    return tuple(editors)
