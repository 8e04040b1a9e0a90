"""Features: the map, its weights, and what a verifier sends of the target's states."""

from __future__ import annotations

import hashlib
import re

import grpc

from draftwire_tools.check_drafter.draft_stream import StreamEnded
from draftwire_tools.check_drafter.drafter_under_test import IGNORED_CAPABILITY, DrafterUnderTest
from draftwire_tools.check_drafter.features import MOST_BYTES, Features, map_fault, weight_bytes
from draftwire_tools.check_drafter.findings import Breach, Skip
from draftwire_tools.check_drafter.trial import Trials
from draftwire_tools.check_drafter.trials.malformed import names
from draftwire_tools.check_drafter.trials.openings import no_error
from draftwire_tools.check_drafter.trials.verdicts import expect

FEATURES = Trials()
_CAPABILITY = "features"
_OTHER = "0" * 64


def _reads(drafter: DrafterUnderTest) -> Features:
    """Returns what makes the drafter's features. Raises Skip for a drafter that reads none."""
    if drafter.features is None:
        raise Skip("it reads no features" if _CAPABILITY not in drafter.hello.capabilities else "its map is wrong")
    return drafter.features


@FEATURES.of("features.map")
async def describes_its_map(drafter: DrafterUnderTest) -> str:
    """The map of its hello."""
    capable, described = _CAPABILITY in drafter.hello.capabilities, drafter.hello.HasField("features")
    if capable != described:
        raise Breach(
            "describes features without the capability" if described else "has the capability, but no features"
        )
    if not described:
        raise Skip("it reads no features")
    kind = drafter.hello.features
    fault = map_fault(kind)
    if fault:
        raise Breach(f"features.{fault}")
    if re.fullmatch(r"[0-9a-f]{64}", kind.weights_sha256) is None:
        raise Breach(f"features.weights_sha256 is {kind.weights_sha256[:80]!r}, not 64 hexadecimal digits")
    return f"{kind.width} {kind.dtype} of {len(kind.layers)} layers"


@FEATURES.of("features.weights")
async def sends_the_weights(drafter: DrafterUnderTest) -> None:
    """GetFeatureWeights, for the hash of its hello and for another."""
    _reads(drafter)
    kind = drafter.hello.features
    digest, count = hashlib.sha256(), 0
    async for part in drafter.feature_weights(kind.weights_sha256):
        if len(part) > MOST_BYTES:
            raise Breach(f"a message has {len(part)} bytes of weights")
        digest.update(part)
        count += len(part)
    if count != weight_bytes(kind):
        raise Breach(f"sends {count} bytes of weights, where its map has {weight_bytes(kind)}")
    if digest.hexdigest() != kind.weights_sha256:
        raise Breach("the hash of the weights that it sends is not features.weights_sha256")
    try:
        async for _ in drafter.feature_weights(_OTHER):
            pass
    except StreamEnded as end:
        if end.reason != "INVALID_FIELD":
            raise Breach(f"expected INVALID_FIELD for another hash, but {end}") from end
    else:
        raise Breach("sends weights for another hash than its own")


@FEATURES.of("features.needed")
async def a_verifier_without_features(drafter: DrafterUnderTest) -> None:
    """A verifier that lacks the capability."""
    _reads(drafter)
    async with drafter.dial() as stream:
        try:
            await drafter.greet(stream, capabilities=[IGNORED_CAPABILITY])
        except StreamEnded as end:
            if (end.code, end.reason) != (grpc.StatusCode.FAILED_PRECONDITION, "PROTOCOL_MISMATCH"):
                raise Breach(f"expected FAILED_PRECONDITION PROTOCOL_MISMATCH, but {end}") from end
        else:
            raise Breach("answers a verifier that can send no features")


@FEATURES.of("features.parts")
async def in_parts(drafter: DrafterUnderTest) -> None:
    """A prompt's features in parts, some of them again, and those of accepted nodes before their verdict."""
    _reads(drafter)
    prompt = drafter.prompt()
    last = len(prompt) - 1
    async with drafter.verifier() as side:
        side.by_itself = False
        await side.open(1, prompt)
        for begin, end in ((0, 5), (5, last), (3, 8)):
            await side.send_features(1, begin, end)
        await side.opened(1)
        for _ in range(3):
            await side.nodes(1)
            mirror = side.mirrors[1]
            tokens = [*mirror.best_path()[:2], mirror.tokens[-4]]
            await side.send_features(1, len(mirror.tokens) - 1, len(mirror.tokens) + len(tokens) - 1)
            await side.commit({1: tokens})
        await side.nodes(1)
        await side.settle()
        no_error(side, "an error for features that are allowed")


@FEATURES.of("features.missing")
async def some_are_missing(drafter: DrafterUnderTest) -> None:
    """The features of a prompt's beginning never come, nor those of some output."""
    _reads(drafter)
    prompt = drafter.prompt()
    async with drafter.verifier() as side:
        side.by_itself = False
        await side.open(1, prompt)
        await side.send_features(1, 9, len(prompt) - 1)
        await side.opened(1)
        for number in range(4):
            await side.nodes(1)
            mirror = side.mirrors[1]
            await side.commit({1: [mirror.tokens[-4], mirror.tokens[-3]]})
            if number % 2:
                await side.send_features(1, len(mirror.tokens) - 2, len(mirror.tokens) - 1)
        await side.settle()
        no_error(side, "an error where features are missing")


@FEATURES.of("features.values")
async def broken_values(drafter: DrafterUnderTest) -> None:
    """Values of no feature, and of one and a half."""
    features = _reads(drafter)
    for values in (b"", features.values(0, 1) + b"\0"):
        async with drafter.drafting() as side:
            await side.open(2, drafter.prompt(), epoch=2)
            await side.opened(2)
            await side.send_values(1, 1, 0, values)
            names(await side.error(1), "features.values")
            await side.commit({2: drafter.prompt()[:1]})
            await side.settle()
            if side.mirrors[2].failed:
                raise Breach(f"the other sequence failed, too: {side.fault(2, 2).text}")


@FEATURES.of("features.position")
async def beyond_the_end(drafter: DrafterUnderTest) -> None:
    """Features of positions that the sequence will never have."""
    features = _reads(drafter)
    async with drafter.drafting() as side:
        await side.send_values(1, 1, side.mirrors[1].max_length - 1, features.values(0, 2))
        names(await side.error(1), "features.first_position")


@FEATURES.of("features.sequence")
async def not_open(drafter: DrafterUnderTest) -> None:
    """Features of a sequence that was never opened, and of an opening that was replaced."""
    features = _reads(drafter)
    async with drafter.drafting(epoch=1) as side:
        await side.send_values(9, 1, 0, features.values(0, 1))
        expect(await side.error(9), "UNKNOWN_SEQUENCE")
    async with drafter.drafting() as side:
        await side.open(1, drafter.prompt(), epoch=3)
        await side.opened(1)
        await side.send_values(1, 1, 0, features.values(0, 3))
        await side.settle()
        no_error(side, "an error for features of an older epoch")
        await side.commit({1: drafter.prompt()[:1]})
        await side.settle()
        no_error(side, "an error for a verdict after them")


@FEATURES.of("features.unasked")
async def not_asked_for(drafter: DrafterUnderTest) -> str | None:
    """Features for a drafter that has not the capability."""
    if _CAPABILITY in drafter.hello.capabilities:
        raise Skip("it reads features")
    async with drafter.drafting() as side:
        await side.send_values(1, 1, 0, bytes(8))
        try:
            await side.listen()
            await side.settle()
            await side.commit({1: drafter.prompt()[:1]})
            await side.settle()
        except StreamEnded as end:
            if end.unclear:
                raise
            if end.reason != "INVALID_FIELD":
                raise Breach(f"expected INVALID_FIELD, but {end}") from end
            return None
        no_error(side, "an error of the sequence; expected the end of the stream, or none")
    return "ignores them, as of a kind that it does not know"
