"""The beginning of a prompt, used to choose a verifier that may have it in its prefix cache."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire.v1 import verifier_service_pb2 as pb

_TOKEN_BYTES = 4


def prompt_prefix(request: pb.GenerateRequest, size: int) -> bytes:
    """Returns the first ``size`` bytes of a prompt; a conversation counts as its roles and contents, concatenated."""
    match request.WhichOneof("prompt"):
        case "text":
            return request.text[:size].encode()[:size]
        case "messages":
            return _conversation_prefix(request.messages, size)
        case _:
            return token_prefix(request.token_ids.ids, size)


def token_prefix(ids: Sequence[int], size: int) -> bytes:
    """Returns the first ``size`` bytes of token ids, each as four bytes."""
    whole = b"".join(each.to_bytes(_TOKEN_BYTES, "little") for each in ids[: -(-size // _TOKEN_BYTES)])
    return whole[:size]


def _conversation_prefix(conversation: pb.ChatMessages, size: int) -> bytes:
    found = b""
    for message in conversation.messages:
        found += f"{message.role}\0{message.content[:size]}\0".encode()
        if len(found) >= size:
            break
    return found[:size]
