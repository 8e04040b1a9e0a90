"""The reports on a request's prompt, in parts of bounded size, made while the prompt is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from draftwire.v1.token_log_probs_pb2 import TokenLogProbs
from draftwire.v1.verifier_service_pb2 import PromptReport
from draftwire_core.engine.sampling.log_probs import LogProbs
from draftwire_core.engine.text.tokenizer import Tokenizer
from verifier_service.running.chunk_parts import log_prob_messages

MOST_ENTRIES = 1 << 14
"""Most entries of one message, tokens and their alternatives together, at some 25 bytes each on the wire."""


class PromptTelling:
    """Builds the reports on a prompt. The event loop adds the engine's results; a helper thread makes one report at a
    time."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer, top: int | None):
        """top: as SequenceSpec.prompt_logprobs."""
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream()
        self._with_log_probs = top is not None
        self._most = max(1, MOST_ENTRIES // (1 + (top or 0)))
        self._parts: deque[LogProbs] = deque()
        self._known = 1 if self._with_log_probs else len(prompt)
        self._told = 0
        self._characters = 0

    @property
    def ready(self) -> bool:
        """Whether a report can be made: a full one, or the last one."""
        waiting = self._known - self._told
        return waiting >= self._most or (waiting > 0 and self._known == len(self._prompt))

    def take(self, part: LogProbs) -> None:
        """Adds the log-probabilities of the next tokens; those beyond the prompt, of resumed output, are dropped."""
        part = part.part(slice(0, len(self._prompt) - self._known))
        self._parts.append(part)
        self._known += len(part)

    def next(self) -> PromptReport:
        """Returns the next report; called only when `ready`."""
        end = min(self._known, self._told + self._most)
        tokens = self._prompt[self._told : end]
        report = PromptReport(token_ids=tokens)
        texts: list[str] = []
        for token in tokens:
            report.token_texts.append(self._tokenizer.texts.of(token).text)
            report.text_offsets.append(self._characters)
            texts.append(self._stream.push(token))
            self._characters += len(texts[-1])
        if end == len(self._prompt):
            texts.append(self._stream.flush())
        report.text = "".join(texts)
        if self._with_log_probs:
            if self._told == 0:
                report.log_probs.add()  # the first token has no log-probability
            report.log_probs.extend(self._messages(len(tokens) - len(report.log_probs)))
        self._told = end
        return report

    def _messages(self, count: int) -> Iterator[TokenLogProbs]:
        while count > 0:
            part = self._parts.popleft()
            if len(part) > count:
                self._parts.appendleft(part.part(slice(count, None)))
                part = part.part(slice(0, count))
            count -= len(part)
            yield from log_prob_messages(part, self._tokenizer.texts)
