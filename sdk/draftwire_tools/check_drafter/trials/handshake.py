"""The handshake, the stream as a whole, signs of life, and what the drafter reports of itself."""

from __future__ import annotations

import re

import grpc

from draftwire.v1 import drafter_service_pb2 as messages
from draftwire.v1 import model_info_pb2
from draftwire_tools.check_drafter.draft_stream import DraftStream, StreamEnded
from draftwire_tools.check_drafter.drafter_under_test import REVISION, DrafterUnderTest
from draftwire_tools.check_drafter.findings import Breach, Skip
from draftwire_tools.check_drafter.messages import opening
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.trials.verdicts import expect, send_verdict

HANDSHAKE = Trials()
SIGNS_OF_LIFE = Trials()
_LARGEST_PING = 2**64 - 1
_LARGEST_HELLO = 64 * 1024
_UNKNOWN_KIND = bytes((0xC2, 0x3E, 0x02, 0x08, 0x01))
"""Field 1000 of DraftRequest, a message with one number: a kind of a later revision."""
_LATER = REVISION + 1000


async def _refused(stream: DraftStream, drafter: DrafterUnderTest, reason: str) -> None:
    """Reads until the stream ends, with FAILED_PRECONDITION and a reason; raises Breach otherwise."""
    try:
        while True:
            await stream.read(drafter.patience.answer)
    except TimeoutError as error:
        raise Breach(f"the stream goes on; expected its end with {reason}") from error
    except StreamEnded as end:
        if (end.code, end.reason) != (grpc.StatusCode.FAILED_PRECONDITION, reason):
            raise Breach(f"expected FAILED_PRECONDITION {reason}, but {end}") from end


@HANDSHAKE.of("handshake.answer")
async def answers_hello(drafter: DrafterUnderTest) -> str:
    """The first hello, whose facts all other trials use."""
    async with drafter.dial() as stream:
        drafter.hello = hello = await drafter.greet(stream)
    if not hello.min_protocol_revision <= REVISION <= hello.protocol_revision:
        raise Breach(f"speaks revisions {hello.min_protocol_revision} to {hello.protocol_revision}, not {REVISION}")
    names = ", ".join(hello.capabilities)
    return f"{hello.model.model_id or 'no model named'}" + (f"; {names}" if names else "")


@HANDSHAKE.of("handshake.text")
async def hello_is_printable(drafter: DrafterUnderTest) -> None:
    """Size and texts of the hello."""
    size = drafter.hello.ByteSize()
    if size > _LARGEST_HELLO:
        raise Breach(f"its hello has {size} bytes")
    for message in (drafter.hello, drafter.hello.model):
        for field, value in message.ListFields():
            texts = [value] if isinstance(value, str) else value if field.name == "capabilities" else []
            if not all(text.isprintable() for text in texts):
                raise Breach(f"the field {field.name} is not printable")


@HANDSHAKE.of("handshake.tokenizer")
async def names_its_tokenizer(drafter: DrafterUnderTest) -> None:
    """The hash of the tokenizer."""
    found = drafter.hello.model.tokenizer_sha256
    if not found:
        raise Skip("reports none: a wrong tokenizer goes unnoticed, and its drafts are rejected")
    if re.fullmatch(r"[0-9a-f]{64}", found) is None:
        raise Breach(f"model.tokenizer_sha256 is {found[:80]!r}, not 64 hexadecimal digits")


@HANDSHAKE.of("handshake.other_tokenizer")
async def another_tokenizer(drafter: DrafterUnderTest) -> str | None:
    """A verifier of another target."""
    if not drafter.hello.model.tokenizer_sha256:
        raise Skip("reports no tokenizer")
    model = model_info_pb2.ModelInfo(model_id="another-target", tokenizer_sha256="0" * 64, vocab_size=1000)
    return await _refuses(drafter, "TOKENIZER_MISMATCH", model=model)


@HANDSHAKE.of("handshake.other_revision")
async def other_revisions(drafter: DrafterUnderTest) -> str | None:
    """A verifier from the future."""
    return await _refuses(drafter, "PROTOCOL_MISMATCH", protocol_revision=_LATER, min_protocol_revision=_LATER)


async def _refuses(drafter: DrafterUnderTest, reason: str, **hello: object) -> str | None:
    """Either side may refuse: a drafter that answers leaves it to the verifier, which needs a true hello for it."""
    async with drafter.dial() as stream:
        try:
            answer = await drafter.greet(stream, **hello)
        except StreamEnded as end:
            if (end.code, end.reason) != (grpc.StatusCode.FAILED_PRECONDITION, reason):
                raise Breach(f"expected FAILED_PRECONDITION {reason}, but {end}") from end
            return None
    if answer.model.tokenizer_sha256 != drafter.hello.model.tokenizer_sha256:
        raise Breach("names another tokenizer to a verifier with another tokenizer")
    if answer.protocol_revision >= _LATER:
        raise Breach(f"speaks revision {answer.protocol_revision}, but not on the stream before")
    return "answers, and leaves the refusal to the verifier"


@HANDSHAKE.of("handshake.first")
async def begins_without_hello(drafter: DrafterUnderTest) -> None:
    """An opening as the first message."""
    async with drafter.dial() as stream:
        await stream.write(messages.DraftRequest(open=opening(1, drafter.prompt())))
        await _refused(stream, drafter, "HANDSHAKE_EXPECTED")


@HANDSHAKE.of("handshake.once")
async def hello_twice(drafter: DrafterUnderTest) -> None:
    """A second hello."""
    async with drafter.dial() as stream:
        await drafter.greet(stream)
        await stream.write(messages.DraftRequest(hello=drafter.own_hello()))
        await _refused(stream, drafter, "HANDSHAKE_EXPECTED")


@HANDSHAKE.of("stream.unknown")
async def unknown_kind(drafter: DrafterUnderTest) -> None:
    """A message of a later revision, and one without content."""
    async with drafter.verifier() as side:
        await side.stream.write(messages.DraftRequest.FromString(_UNKNOWN_KIND))
        await side.stream.write(messages.DraftRequest())
        await side.open(1, drafter.prompt())
        await side.opened(1)


@HANDSHAKE.of("stream.end")
async def the_verifier_leaves(drafter: DrafterUnderTest) -> None:
    """The verifier ends its side with a sequence open."""
    async with drafter.drafting() as side:
        await side.stream.done_writing()
        try:
            await side.until(lambda: False, "end of the stream")
        except StreamEnded as end:
            if end.code is not grpc.StatusCode.OK:
                raise


@HANDSHAKE.of("stream.new")
async def a_new_stream(drafter: DrafterUnderTest) -> None:
    """The same id and epoch on a second stream, as after a lost connection."""
    async with drafter.drafting(epoch=5) as side:
        await side.nodes(1)
    async with drafter.drafting(epoch=1) as side:
        await side.nodes(1)
        await side.settle()


@HANDSHAKE.of("stream.two")
async def two_streams(drafter: DrafterUnderTest) -> None:
    """The same id on two streams at once, as while the model is replaced; each follows its own verdicts."""
    async with drafter.drafting() as one:
        async with drafter.dial() as stream:
            try:
                await drafter.greet(stream)
            except StreamEnded as end:
                if end.reason == "AT_CAPACITY":
                    raise Skip("takes one stream at a time") from end
                raise
        async with drafter.drafting(epoch=2) as two:
            for side in (one, two, one):
                await side.nodes(1)
                await side.commit({1: _next(side.mirrors[1].tokens)})
                await side.settle()
                if side.faults:
                    raise Breach(f"an error for a correct verdict: {next(iter(side.faults.values()))[0].text}")
            for side in (one, two):  # each still has its own
                mirror = side.mirrors[1]
                await send_verdict(side, 1, mirror.epoch, len(mirror.tokens) + 3, mirror.tokens[:1])
                expect(await side.error(1, mirror.epoch), "OUT_OF_SYNC")


@SIGNS_OF_LIFE.of("ping.pong")
async def pings(drafter: DrafterUnderTest) -> None:
    """Three pings, one of them with the largest number."""
    if "ping" not in drafter.hello.capabilities:
        raise Skip("it has not the capability ping")
    async with drafter.verifier() as side:
        for number in (5, _LARGEST_PING, 0):
            await side.ping(number)
        await side.until(lambda: {5, _LARGEST_PING, 0} <= set(side.pongs), "pongs of 5, 2^64 - 1 and 0")
        await side.settle()
    drafter.pings = True  # other trials know by a pong that the drafter has read what came before


@SIGNS_OF_LIFE.of("info.same")
async def model_info(drafter: DrafterUnderTest) -> None:
    """GetModelInfo, which a drafter need not serve."""
    info = await drafter.model_info()
    for field in ("tokenizer_sha256", "vocab_size", "model_id"):
        said, greeted = getattr(info.model, field), getattr(drafter.hello.model, field)
        if said != greeted:
            raise Breach(f"model.{field} is {said!r} there, {greeted!r} in its hello")


def _next(tokens: list[int]) -> list[int]:
    """Returns the token with which a repeating prompt goes on."""
    return [tokens[len(tokens) - 4]]
