"""The fake verifier with log-probabilities and a prompt report where a request asks for them."""

import threading
from collections.abc import Iterator
from typing import Any

from draftwire.v1 import token_log_probs_pb2
from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.stand_ins.fake_verifier import FakeVerifier, text_of


def log_probs(token_id: int, top: int) -> token_log_probs_pb2.TokenLogProbs:
    """Returns log-probabilities in which the token and its successors are the most likely ones, at -0.5, -1.5, ..."""
    told = token_log_probs_pb2.TokenLogProbs(token=log_prob(token_id, 0), rank=1)
    told.top.extend(log_prob(token_id + offset, offset) for offset in range(top))
    return told


def log_prob(token_id: int, rank: int) -> token_log_probs_pb2.TokenLogProb:
    text = chr(token_id)
    return token_log_probs_pb2.TokenLogProb(
        token_id=token_id, log_prob=-0.5 - rank, text=text, text_bytes=text.encode()
    )


class TellingVerifier(FakeVerifier):
    """Reports alternatives to each token, and the whole prompt at once."""

    def _events(
        self, request: pb.GenerateRequest, context: Any, ended: threading.Event
    ) -> Iterator[pb.GenerateResponse]:
        offset = 0
        for event in super()._events(request, context, ended):
            if event.HasField("prompt"):
                continue
            if event.HasField("chunk"):
                del event.chunk.text_offsets[:], event.chunk.log_probs[:]
                count = len(event.chunk.token_ids)
                event.chunk.text_offsets.extend(range(offset, offset + count))
                offset += count
                if request.HasField("log_probs"):
                    event.chunk.log_probs.extend(log_probs(t, request.log_probs) for t in event.chunk.token_ids)
            yield event
            if event.HasField("started") and (request.echo or request.HasField("prompt_log_probs")):
                ids = list(request.token_ids.ids or event.started.prompt_token_ids)
                report = pb.PromptReport(
                    text=text_of(ids),
                    token_ids=ids,
                    token_texts=[chr(token_id) for token_id in ids],
                    text_offsets=range(len(ids)),
                )
                if request.HasField("prompt_log_probs"):
                    report.log_probs.extend(log_probs(token_id, request.prompt_log_probs) for token_id in ids)
                yield pb.GenerateResponse(prompt=report)
