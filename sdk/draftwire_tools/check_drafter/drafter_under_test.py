"""The drafter that is checked: its address, what its hello said, and streams to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import grpc
import grpc.aio

from draftwire._auth.security import Metadata
from draftwire._messages.methods import GET_DRAFTER_INFO, GET_FEATURE_WEIGHTS
from draftwire.errors import from_rpc_error
from draftwire.v1 import drafter_service_pb2 as drafter
from draftwire.v1 import model_info_pb2
from draftwire.version import __version__
from draftwire_tools.check_drafter.draft_stream import DraftStream, StreamEnded
from draftwire_tools.check_drafter.features import Features, map_fault
from draftwire_tools.check_drafter.findings import Breach, Findings, Skip
from draftwire_tools.check_drafter.verifier_side import Patience, VerifierSide

REVISION = 1
"""The protocol revision that the check speaks."""
HANDSHAKE_SECONDS = 5.0
"""Time that a verifier waits for a drafter's hello."""
_NOT_SERVED = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)
IGNORED_CAPABILITY = "x-check-drafter"
"""A name that no drafter knows, to be ignored."""
_FIRST_ID = 10
_PERIOD = 4


class DrafterUnderTest:
    """Opens streams as a verifier does."""

    def __init__(
        self, channel: grpc.aio.Channel, metadata: Metadata, findings: Findings, patience: Patience, vocab_size: int
    ) -> None:
        """vocab_size: number of token ids, if the drafter's hello does not say it; 0 for none that is known."""
        self.channel = channel
        self.metadata = metadata
        self.findings = findings
        self.patience = patience
        self.hello = model_info_pb2.PeerInfo()
        """The drafter's hello, once it has come."""
        self.pings = False
        """Whether the drafter answers pings."""
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """Number of the drafter's token ids; 0 if unknown."""
        return self.hello.model.vocab_size or self._vocab_size

    @property
    def features(self) -> Features | None:
        """The maker of the features that the drafter reads; None if it reads none, or describes them wrongly."""
        described = "features" in self.hello.capabilities and self.hello.HasField("features")
        return Features(self.hello.features) if described and not map_fault(self.hello.features) else None

    def prompt(self, length: int = 24) -> list[int]:
        """Returns a prompt that repeats itself, so that drafters that look back find something.

        Raises:
            Breach: the drafter reports that all tokens are ends.
        """
        size, ends = self.vocab_size or 256, set(self.hello.model.eos_token_ids)
        first = _FIRST_ID if size > 2 * _FIRST_ID else 0
        ids = list(islice((each for each in range(first, size) if each not in ends), _PERIOD))
        if not ids:
            raise Breach(f"of its {size} tokens, all are in eos_token_ids")
        return [ids[index % len(ids)] for index in range(length)]

    def own_hello(self, **changes: Any) -> model_info_pb2.PeerInfo:
        """Returns the hello of a verifier whose target has the drafter's tokenizer."""
        fields: dict[str, Any] = {
            "protocol_revision": REVISION,
            "min_protocol_revision": REVISION,
            "build": f"draftwire check-drafter {__version__}",
            "capabilities": [IGNORED_CAPABILITY, "features"],
            "model": model_info_pb2.ModelInfo(
                model_id="check-drafter",
                vocab_size=self.vocab_size,
                tokenizer_sha256=self.hello.model.tokenizer_sha256,
            ),
        }
        return model_info_pb2.PeerInfo(**(fields | changes))

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[DraftStream]:
        """Opens a stream without a handshake."""
        stream = DraftStream(self.channel, self.metadata)
        try:
            yield stream
        finally:
            await stream.close()

    async def greet(self, stream: DraftStream, **changes: Any) -> model_info_pb2.PeerInfo:
        """Exchanges hellos.

        Raises:
            Breach: the answer is something else, or does not come in time.
            StreamEnded: the drafter refuses.
        """
        await stream.write(drafter.DraftRequest(hello=self.own_hello(**changes)))
        try:
            answer = await stream.read(HANDSHAKE_SECONDS)
        except TimeoutError as error:
            raise Breach(f"no hello within {HANDSHAKE_SECONDS:g} seconds") from error
        if answer.WhichOneof("message") != "hello":
            raise Breach(f"the first message is {answer.WhichOneof('message')}, not hello")
        return answer.hello

    @asynccontextmanager
    async def verifier(self, **changes: Any) -> AsyncIterator[VerifierSide]:
        """Opens a stream and exchanges hellos; raises as `greet` does. changes: of the verifier's hello."""
        async with self.dial() as stream:
            hello = await self.greet(stream, **changes)
            sizes = [size for size in (self.vocab_size, self.own_hello(**changes).model.vocab_size) if size]
            yield VerifierSide(
                stream, self.findings, self.patience, hello, min(sizes, default=0), pings=self.pings,
                features=self.features,
            )  # fmt: skip

    @asynccontextmanager
    async def drafting(self, sequence_id: int = 1, **changes: Any) -> AsyncIterator[VerifierSide]:
        """Opens a stream with one open sequence. changes: of its opening."""
        async with self.verifier() as side:
            await side.open(sequence_id, self.prompt(), **changes)
            await side.opened(sequence_id)
            yield side

    async def feature_weights(self, sha256: str) -> AsyncIterator[bytes]:
        """Yields the weights of its map in parts, as they come.

        Raises:
            StreamEnded: the call fails.
        """
        call: Any = self.channel.unary_stream(
            GET_FEATURE_WEIGHTS.path,
            request_serializer=GET_FEATURE_WEIGHTS.request.SerializeToString,
            response_deserializer=GET_FEATURE_WEIGHTS.response.FromString,
        )
        request = GET_FEATURE_WEIGHTS.request(weights_sha256=sha256)
        try:
            async for part in call(request, metadata=self.metadata, timeout=self.patience.answer):
                yield part.values
        except grpc.RpcError as caught:
            error = from_rpc_error(caught)
            raise StreamEnded(error.code, str(error.reason or ""), error.details) from caught

    async def model_info(self) -> model_info_pb2.PeerInfo:
        """Returns what GetModelInfo reports.

        Raises:
            Skip: the drafter does not serve it, or not to this caller.
            Breach: the call fails otherwise.
        """
        call: Any = self.channel.unary_unary(
            GET_DRAFTER_INFO.path,
            request_serializer=GET_DRAFTER_INFO.request.SerializeToString,
            response_deserializer=GET_DRAFTER_INFO.response.FromString,
        )
        try:
            answer = await call(GET_DRAFTER_INFO.request(), metadata=self.metadata, timeout=self.patience.answer)
        except grpc.RpcError as caught:
            error = from_rpc_error(caught)
            if error.code in _NOT_SERVED:
                raise Skip(f"it does not serve GetModelInfo: {error.code.name}") from caught
            raise Breach(f"GetModelInfo: {error.code.name} {error}") from caught
        info: model_info_pb2.PeerInfo = answer.info
        return info


def other(tokens: Sequence[int], taken: int) -> int:
    """Returns a token of a prompt that is not this one."""
    return next(each for each in tokens if each != taken)
