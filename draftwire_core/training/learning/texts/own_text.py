"""The target's own text: continuations of prompts, written while a verifier has nothing else to do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle

from draftwire import Client, GenerationStream, Prompt, Speculation, TokenLogProbs, VerifierInfo
from draftwire.errors import AtCapacityError, DraftwireError, InvalidArgumentError, RequestCancelledError
from draftwire_core.training.learning.texts.top_tokens import TOP, TopTokens

_TEMPERATURES = (0.0, 0.7)
"""Each prompt is continued once at each of them."""
_MOST_TOKENS = 128
"""Tokens of a text."""
_LEAST_TOKENS = 17
"""Tokens from which an interrupted text is kept."""
_MOST_TOGETHER = 8
"""Most texts written at once."""
_POLL_SECONDS = 0.05
"""Time between two looks at the verifier while texts are written: not much more than a step of a small target."""
_CALL_SECONDS = 5.0


class OwnText:
    """Has an idle verifier continue prompts, each once at each temperature.

    The requests are private, bypass the prefix cache, and are decoded plainly, so that no drafter's figures have them.
    They take at most half of the verifier's places and KV slots, except that one text may always be written, and are
    cancelled as soon as another request arrives.
    """

    def __init__(
        self,
        client: Client,
        prompts: Sequence[Prompt],
        take: Callable[[list[int], list[int], TopTokens], object],
        *,
        tell: Callable[[str], None],
        quiet_seconds: float = 5.0,
        probabilities: bool = False,
    ):
        """client: of one verifier. prompts: texts, which become a user's message if the target has a chat template, or
        token ids.

        take: called with the tokens of a prompt, those of its continuation and the likeliest ones there. tell: called
        with the reason when a prompt is refused. quiet_seconds: time without another request before texts are written.
        probabilities: whether to ask for the likeliest tokens.
        """
        self._client = client
        self._take = take
        self._tell = tell
        self._quiet_seconds = quiet_seconds
        self._top = TOP if probabilities else None
        self._others = _Others(client)
        self._left = _orders(prompts)

    @property
    def finished(self) -> bool:
        """Whether all texts have been written."""
        return not self._left

    def write(self) -> None:
        """Writes a few texts if the verifier has been idle for long enough; returns at once if it has not.

        Call it about once a second while text is wanted. If another request arrives, or an exception interrupts the
        call, the requests are cancelled. Raises DraftwireError.
        """
        if not self._left:
            return
        try:
            info = self._others.look()
            if self._others.quiet_seconds >= self._quiet_seconds:
                self._write(info)
        except AtCapacityError:  # others came at the same time
            self._others.seen()
        except BaseException:
            self._others.seen()
            raise

    def _write(self, info: VerifierInfo) -> None:
        texts: list[_Text] = []
        orders, slots = 0, info.engine.total_slots // 2
        for order in self._left[: max(1, min(_MOST_TOGETHER, info.limits.max_sequences // 2))]:
            prompt = self._token_ids(order.prompt, chat=info.chat_format is not None)
            slots -= len(prompt) + _MOST_TOKENS
            if slots < 0 and texts:
                break
            orders += 1
            if prompt:
                texts.append(_Text(order, prompt))
        self._others.expect(len(texts))
        with ThreadPoolExecutor(max(len(texts), 1), "own-text") as pool, ExitStack() as streams:
            reading = {
                pool.submit(text.read, streams.enter_context(text.begin(self._client, self._top))) for text in texts
            }
            while reading and not self._others.came():
                reading = wait(reading, _POLL_SECONDS).not_done
        again = [text.order for text in texts if not text.worth_keeping and not text.refused]
        self._left = [*self._left[orders:], *again]
        for text in texts:
            if text.worth_keeping:
                self._take(text.prompt, text.tokens, text.likeliest)
        for error in [text.error for text in texts if text.error is not None]:
            if not isinstance(error, InvalidArgumentError):
                raise error
            self._skip(error)

    def _token_ids(self, prompt: Prompt, *, chat: bool) -> list[int]:
        """Returns a prompt's tokens; none if the verifier refuses it. Raises DraftwireError."""
        if not isinstance(prompt, str):
            return list(prompt)
        try:
            if chat:
                return self._client.tokenize(messages=[{"role": "user", "content": prompt}], timeout=_CALL_SECONDS)
            return self._client.tokenize(prompt, add_special_tokens=True, timeout=_CALL_SECONDS)
        except InvalidArgumentError as error:
            self._skip(error)
            return []

    def _skip(self, error: DraftwireError) -> None:
        self._tell(f"the target's own text: a prompt is skipped: {error}")


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """A text to write."""

    prompt: Prompt
    temperature: float


def _orders(prompts: Sequence[Prompt]) -> list[_Order]:
    """Returns each prompt with each temperature, in random order, and not twice until all have come once."""
    shuffled = random.sample(prompts, len(prompts))
    first = [_Order(prompt, temperature) for prompt, temperature in zip(shuffled, cycle(_TEMPERATURES), strict=False)]
    second = [_Order(order.prompt, sum(_TEMPERATURES) - order.temperature) for order in first]
    return first + second


@dataclass(eq=False)
class _Text:
    """A text that is being written."""

    order: _Order
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    log_probs: list[TokenLogProbs] = field(default_factory=list)
    complete: bool = False
    error: DraftwireError | None = None

    def begin(self, client: Client, top: int | None) -> GenerationStream:
        """Starts the request. top: number of likeliest tokens to report; None reports none. Raises DraftwireError."""
        return client.stream(
            self.prompt,
            max_tokens=_MOST_TOKENS,
            fit_max_tokens=True,
            temperature=self.order.temperature,
            speculation=Speculation(enabled=False),
            prefix_cache=False,
            private=True,
            logprobs=top,
        )

    def read(self, stream: GenerationStream) -> None:
        """Reads the request to its end, or until it is cancelled."""
        try:
            for chunk in stream:
                self.tokens += chunk.token_ids
                self.log_probs += chunk.logprobs
            self.complete = stream.finished
        except RequestCancelledError:
            return  # what has come counts
        except DraftwireError as error:
            self.error = error

    @property
    def likeliest(self) -> TopTokens:
        """The likeliest tokens at the positions of its tokens; none if they were not asked for."""
        return TopTokens.reported(self.log_probs) if self.log_probs else TopTokens.none(len(self.tokens))

    @property
    def worth_keeping(self) -> bool:
        """Whether there is something to learn from it."""
        return bool(self.tokens) if self.complete else len(self.tokens) >= _LEAST_TOKENS

    @property
    def refused(self) -> bool:
        """Whether the prompt is at fault, so that trying again is useless; also of an empty text."""
        return self.complete or isinstance(self.error, InvalidArgumentError)


class _Others:
    """Notices the requests of others at a verifier, by its count of requests that have begun."""

    def __init__(self, client: Client):
        self._client = client
        self._known: int | None = None
        """Requests that have begun, and own ones that are about to; None if it is not known."""
        self._running = True
        """Whether requests of others were running at the last look."""
        self._seen = time.monotonic()

    @property
    def quiet_seconds(self) -> float:
        """Time since others were seen for the last time."""
        return time.monotonic() - self._seen

    def look(self) -> VerifierInfo:
        """Returns the verifier's state while no own request runs, and notes whether others use it.

        An own request that has ended may still be in the figures for a moment; it is known, and nobody else's. Raises
        DraftwireError.
        """
        info = self._client.model_info(timeout=_CALL_SECONDS)
        begun = _begun(info)
        if self._running or begun != self._known:
            self.seen()
            self._running = info.engine.running_sequences + info.engine.waiting_requests > 0
            self._known = begun
        return info

    def expect(self, requests: int) -> None:
        """Notes that so many own requests are about to begin."""
        if self._known is not None:
            self._known += requests

    def came(self) -> bool:
        """Returns whether others have begun a request since the last look. Raises DraftwireError."""
        if self._known is None or _begun(self._client.model_info(timeout=_CALL_SECONDS)) <= self._known:
            return False
        self.seen()
        return True

    def seen(self) -> None:
        """Notes that others use the verifier, or that it cannot be told."""
        self._seen = time.monotonic()
        self._known = None


def _begun(info: VerifierInfo) -> int:
    """Returns the number of requests that have begun since the verifier's start."""
    return sum(count.requests for count in info.engine.acceptance)
