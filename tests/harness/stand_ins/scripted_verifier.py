"""A verifier without a model whose answers are written in advance."""

import threading
from collections.abc import Iterator
from typing import Any

from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.stand_ins.telling_verifier import TellingVerifier, log_probs


class ScriptedVerifier(TellingVerifier):
    """Gives the same answer to every request, a token for each character, three tokens a step."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = ""
        self.finish = pb.FINISH_REASON_STOP
        self.chat_format: pb.ChatFormat | None = None
        self.waiting = 0
        """Number of waiting requests that it reports."""
        self.left_out: list[str] = []
        """Parts of output formats that it reports not to enforce."""
        self.formats: dict[str, pb.ChatFormat] = {}
        """Formats of conversations with variables for the template, by these as JSON text."""

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Any) -> pb.GetModelInfoResponse:
        response = super().GetModelInfo(request, context)
        response.engine.waiting_requests = self.waiting
        if self.chat_format is not None:
            response.chat_format.CopyFrom(self.formats.get(request.chat_template_kwargs, self.chat_format))
        return response

    def _events(
        self, request: pb.GenerateRequest, context: Any, ended: threading.Event
    ) -> Iterator[pb.GenerateResponse]:
        started = pb.GenerateStarted(
            request_id=request.request_id,
            prompt_tokens=5,
            seed=request.sampling.seed,
            prompt_token_ids=range(5),
            left_out=self.left_out,
        )
        yield pb.GenerateResponse(started=started)
        for at in range(0, len(self.answer), 3):
            text = self.answer[at : at + 3]
            ids = [ord(letter) for letter in text]
            chunk = pb.GenerateChunk(token_ids=ids, text=text, sources=[0] * len(ids), token_texts=text)
            chunk.text_offsets.extend(range(at, at + len(ids)))
            if request.HasField("log_probs"):
                chunk.log_probs.extend(log_probs(token, request.log_probs) for token in ids)
            yield pb.GenerateResponse(chunk=chunk)
        finished = pb.GenerateFinished(finish_reason=self.finish)
        finished.usage.prompt_tokens, finished.usage.completion_tokens = 5, len(self.answer)
        yield pb.GenerateResponse(finished=finished)
