"""The verifier's side of a Draft stream: sends scripted messages and mirrors the trees."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from google.rpc import error_details_pb2

from draftwire.v1 import drafter_service_pb2, model_info_pb2, sampling_pb2, verdict_pb2
from draftwire_core.engine.tree.proposal import Proposal, ProposalReader
from draftwire_core.engine.tree.token_tree import TokenTree
from draftwire_core.runtime.rpc.message_stream import MessageStream
from tests.harness.waiting import PATIENCE

Request = drafter_service_pb2.DraftRequest


@dataclass
class Mirror:
    """The verifier's copy of a sequence."""

    epoch: int
    tokens: list[int]
    tree: TokenTree
    reader: ProposalReader

    def best_path(self) -> list[int]:
        """Returns the tokens of the path of first children, from the root down."""
        path, node = [], self.tree.root
        while node.children:
            node = next(iter(node.children.values()))
            path.append(node.token)
        return path


class VerifierSide:
    """Talks over the client's end of a stream. A proposal that a verifier would refuse fails the test."""

    def __init__(self, stream: MessageStream[Any, Any], vocab_size: int = 200) -> None:
        self.stream = stream
        self.vocab_size = vocab_size
        self.mirrors: dict[int, Mirror] = {}
        self.opened: list[tuple[int, int]] = []
        self.errors: list[drafter_service_pb2.SequenceError] = []
        self.batches = 0
        self.pongs: list[int] = []
        self.finished: set[int] = set()
        """Sequences whose last proposal before the next verdict has come."""
        self.replaced: list[model_info_pb2.ModelInfo] = []

    async def hello(self, **changes: Any) -> model_info_pb2.PeerInfo:
        fields = {"protocol_revision": 1, "min_protocol_revision": 1, "build": "test"} | changes
        await self.stream.write(Request(hello=model_info_pb2.PeerInfo(**fields)))
        answer = await self._read()
        assert answer.WhichOneof("message") == "hello"
        info: model_info_pb2.PeerInfo = answer.hello
        return info

    async def open(
        self,
        sequence_id: int,
        tokens: Sequence[int],
        *,
        epoch: int = 1,
        credit: int = 16,
        chunk: int = 0,
        **changes: Any,
    ) -> None:
        tokens = list(tokens)
        size = chunk or len(tokens)
        for offset in range(0, len(tokens), size):
            message = opening(sequence_id, tokens, epoch=epoch, credit=credit, **changes)
            message.offset = offset
            message.token_ids[:] = tokens[offset : offset + size]
            await self.stream.write(Request(open=message))
        self.mirrors[sequence_id] = Mirror(
            epoch, tokens, TokenTree(len(tokens), tokens[-1]), ProposalReader("test", credit, self.vocab_size)
        )

    async def commit(self, commits: dict[int, Sequence[int]], max_tree_nodes: int | None = None) -> None:
        """Sends verdicts and applies them to the mirrors."""
        verdicts = []
        for sequence_id, tokens in commits.items():
            mirror = self.mirrors[sequence_id]
            mirror.tree.commit(list(tokens))
            mirror.tokens.extend(tokens)
            verdicts.append(self.verdict(sequence_id, len(mirror.tokens), tokens))
        batch = verdict_pb2.VerdictBatch(verdicts=verdicts, max_tree_nodes=max_tree_nodes)
        await self.stream.write(Request(verdicts=batch))

    def verdict(self, sequence_id: int, committed_length: int, tokens: Sequence[int], epoch: int = 0) -> Any:
        return verdict_pb2.Verdict(
            sequence_id=sequence_id,
            epoch=epoch or self.mirrors[sequence_id].epoch,
            committed_length=committed_length,
            token_ids=tokens,
        )

    async def send_verdict(self, *args: Any, **changes: Any) -> None:
        """Sends a verdict without applying it to the mirror."""
        batch = verdict_pb2.VerdictBatch(verdicts=[self.verdict(*args, **changes)])
        await self.stream.write(Request(verdicts=batch))

    async def close(self, *sequence_ids: int) -> None:
        await self.stream.write(Request(close=drafter_service_pb2.CloseSequences(sequence_ids=sequence_ids)))

    async def ping(self, number: int) -> None:
        await self.stream.write(Request(ping=drafter_service_pb2.Ping(number=number)))

    async def until(self, condition: Callable[[], object]) -> None:
        """Reads until the condition holds."""
        while not condition():
            self._take(await self._read())

    async def error(self, sequence_id: int) -> tuple[str, drafter_service_pb2.SequenceError]:
        """Waits for the next error of a sequence; returns its reason and the message."""
        await self.until(lambda: any(error.sequence_id == sequence_id for error in self.errors))
        found = next(error for error in self.errors if error.sequence_id == sequence_id)
        self.errors.remove(found)
        return detail(found.status, error_details_pb2.ErrorInfo).reason, found

    async def end(self) -> None:
        """Closes this side of the stream and reads until the drafter ends its own."""
        await self.stream.close()
        async with asyncio.timeout(PATIENCE):
            async for message in self.stream:
                self._take(message)

    async def _read(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            message = await self.stream.read()
        assert message is not None, "the drafter ended the stream"
        return message

    def _take(self, message: drafter_service_pb2.DraftResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "opened":
            self.opened.append((message.opened.sequence_id, message.opened.epoch))
        elif kind == "sequence_error":
            self.errors.append(message.sequence_error)
        elif kind == "pong":
            self.pongs.append(message.pong.number)
        elif kind == "replaced":
            self.replaced.append(message.replaced.model)
        else:
            assert kind == "proposals"
            assert message.proposals.step_seconds > 0
            self.batches += 1
            ids = [proposal.sequence_id for proposal in message.proposals.proposals]
            assert len(ids) == len(set(ids)), "two proposals of one sequence"
            for proposal in message.proposals.proposals:
                self._merge(proposal)

    def _merge(self, proposal: Any) -> None:
        mirror = self.mirrors[proposal.sequence_id]
        if proposal.epoch != mirror.epoch:
            assert proposal.epoch < mirror.epoch
            return
        assert (proposal.sequence_id, proposal.epoch) in self.opened, "a proposal before SequenceOpened"
        if proposal.last:
            self.finished.add(proposal.sequence_id)
        mirror.reader.merge(
            Proposal(
                proposal.committed_length,
                proposal.first_node_id,
                list(proposal.token_ids),
                list(proposal.parent_ids),
                list(proposal.log_probs),
            ),
            mirror.tree,
            mirror.tokens,
        )


def opening(sequence_id: int, tokens: Sequence[int], *, epoch: int = 1, credit: int = 16, **changes: Any) -> Any:
    """Returns an OpenSequence with all tokens in one chunk."""
    fields = {
        "sampling": sampling_pb2.SamplingParams(temperature=0.0, seed=7),
        "max_length": len(tokens) + 50,
        "committed_length": len(tokens),
    } | changes
    return drafter_service_pb2.OpenSequence(
        sequence_id=sequence_id, epoch=epoch, token_ids=tokens, max_tree_nodes=credit, **fields
    )


def detail(status: Any, kind: Any) -> Any:
    """Returns a google.rpc detail of a status."""
    found = kind()
    assert any(each.Unpack(found) for each in status.details), f"no {kind.__name__} in {status}"
    return found
