"""The charge of a running request: its choices and tokens, in the account of its key."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from draftwire_core.runtime.process.logs import get_logger
from gateway_service.keys.grant import Grant

log = get_logger(__name__)

_CHECK_SECONDS = 1.0
"""Interval between two checks that the key of a running request is still valid."""


@dataclass(slots=True)
class ChoiceSize:
    """The tokens of one choice, as far as they are known."""

    prompt: int
    """Tokens of the prompt: an estimate until the choice is finished. 0 if another choice counts the same prompt."""
    most: int | None
    """Most tokens of the output; None if the request does not say."""
    output: int = 0
    """Tokens of the output so far."""
    finished: bool = False

    @property
    def used(self) -> int:
        """The tokens that have been used: nothing before the first of the output."""
        return self.prompt + self.output if self.finished or self.output else 0


class Charge:
    """Charges a request to its account while the `with` runs.

    A request is admitted if its prompts, by estimate, and the longest outputs that it names have room in the minute's
    limit; these tokens count from then on. Tokens beyond them, of an output without a maximum, count as they come. At
    the end tokens that were not used are taken back.
    """

    def __init__(self, grant: Grant, names: Sequence[str], sizes: Sequence[ChoiceSize]) -> None:
        """names: the model's name in the request, and its first one. sizes: estimates for all choices, in order."""
        self._grant = grant
        self._account = grant.account
        self._names = names
        self._sizes = sizes
        self._held = sum(size.prompt + (size.most or 0) for size in sizes)
        """Tokens that are in the account's window."""
        self._stack = ExitStack()
        self._checked = self._account.clock()

    def __enter__(self) -> Self:
        """Admits the request.

        Raises:
            GatewayError: a limit is reached.
        """
        self._account.check_tokens(self._grant.key, self._held)
        self._stack.enter_context(self._account.running(self._grant.key, len(self._sizes)))
        self._entry = self._account.tokens.add(self._held)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes back what was not used, and logs the use."""
        self._stack.close()
        used = sum(size.used for size in self._sizes)
        if used < self._held:
            self._account.tokens.take_back(self._entry, self._held - used)
        output = sum(size.output for size in self._sizes)
        for name, tokens in (("prompt", used - output), ("completion", output)):
            self._account.metrics.tokens.labels(self._account.name, name).inc(tokens)
        log.info(
            "key charged",
            key=self._account.name,
            model=self._names[0],
            choices=len(self._sizes),
            prompt_tokens=used - output,
            completion_tokens=output,
            complete=all(size.finished for size in self._sizes),
        )

    def add_output(self, index: int, tokens: int) -> None:
        """Counts tokens of a choice's output as they come.

        Raises:
            GatewayError: the key is no longer valid.
        """
        self._sizes[index].output += tokens
        self._count()
        now = self._account.clock()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self._grant.check_again(*self._names)

    def finish(self, index: int, prompt_tokens: int) -> None:
        """Records that a choice is finished, and the true number of its prompt's tokens."""
        size = self._sizes[index]
        size.finished = True
        size.most = size.output
        if size.prompt:
            size.prompt = prompt_tokens
        self._count()

    def _count(self) -> None:
        """Adds to the window what running choices have taken beyond their estimates."""
        beyond = sum(size.prompt + max(size.output, size.most or 0) for size in self._sizes) - self._held
        if beyond > 0:
            self._held += beyond
            self._account.tokens.add(beyond)
