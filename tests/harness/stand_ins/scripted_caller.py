"""A caller of Verify whose drafts are scripted by a test, right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from google.rpc import status_pb2

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.proposal_pb2 import Proposal
from tests.harness.services.in_process_verifier import Output
from tests.harness.stand_ins.scripted_drafter import Opening, Stream

Draft = Callable[[Opening], Sequence[Proposal]]


def silent(opening: Opening) -> Sequence[Proposal]:
    return ()


@dataclass
class ScriptedCaller:
    """Sends `draft(opening)` when the request is open and after every verdict."""

    draft: Draft = silent
    hangs_up: bool = False
    """Whether it closes its side after its first draft."""
    output: Output = field(default_factory=Output)
    opened: pb.VerifyOpened = field(default_factory=pb.VerifyOpened)
    verdicts: int = 0
    refusals: list[status_pb2.Status] = field(default_factory=list)

    async def run(self, stream: Stream, request: pb.GenerateRequest, tokenizer_sha256: str = "") -> Output:
        """Runs a request to its end."""
        await stream.write(pb.VerifyRequest(start=pb.VerifyStart(request=request, tokenizer_sha256=tokenizer_sha256)))
        return await self.follow(stream)

    async def follow(self, stream: Stream) -> Output:
        """Reads to the end of the stream, drafting after each verdict."""
        opening: Opening | None = None
        told: list[int] = []
        async for message in stream:
            kind = message.WhichOneof("message")
            assert (kind == "opened") == (opening is None), "the first message, and only that"
            if kind == "opened":
                self.opened = message.opened
                opening = Opening(0, 0, list(message.opened.token_ids))
                await self._propose(stream, opening)
            elif kind == "verdict":
                assert opening is not None
                assert not told, "a verdict, then its chunk"
                told = list(message.verdict.token_ids)
                opening.tokens += told
                assert len(opening.tokens) == message.verdict.committed_length
                assert 0 <= message.verdict.accepted <= len(told)
                self.verdicts += 1
                await self._propose(stream, opening)
            elif kind == "refused":
                self.refusals.append(message.refused)
            else:
                if message.event.HasField("chunk"):
                    assert list(message.event.chunk.token_ids) == told
                    told = []
                self.output.take(message.event)
        return self.output

    async def _propose(self, stream: Stream, opening: Opening) -> None:
        if self.hangs_up and self.verdicts:
            return
        for proposal in self.draft(opening):
            await stream.write(pb.VerifyRequest(proposal=proposal))
        if self.hangs_up:
            await stream.close()


def knowing(text: Sequence[int], count: int = 3) -> Draft:
    """Drafts the tokens that the target will generate."""

    def draft(opening: Opening) -> Sequence[Proposal]:
        following = text[len(opening.tokens) : len(opening.tokens) + count]
        return [opening.proposal(following)] if following else ()

    return draft


def lying(text: Sequence[int]) -> Draft:
    """Drafts tokens that the target will not generate."""

    def draft(opening: Opening) -> Sequence[Proposal]:
        following = text[len(opening.tokens) : len(opening.tokens) + 3]
        return [opening.proposal([(token + 1) % 200 for token in following])] if following else ()

    return draft
