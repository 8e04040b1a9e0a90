"""``grpc.health.v1``, the health of gRPC services, as the SDK asks for it.

The messages are built here, in a pool of their own, and not taken from grpcio-health-checking: the SDK does without
that package, and a process that has both keeps them apart.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from draftwire._messages.methods import Method

_PACKAGE = "grpc.health.v1"


class Health(StrEnum):
    """What a service says of itself."""

    SERVING = "serving"
    """It takes calls."""
    NOT_SERVING = "not_serving"
    """It is there and takes none: it has yet to start, or it shuts down."""
    UNKNOWN = "unknown"
    """It does not say."""


_HEALTH = {1: Health.SERVING, 2: Health.NOT_SERVING}


def _messages() -> tuple[type[Message], type[Message]]:
    """The classes of the request, with the name of a service, and of the response, with the number of a status."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package=_PACKAGE, syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    response = file.message_type.add(name="HealthCheckResponse")
    # On the wire an enum is an int32, and so a number that is newer than this SDK does no harm.
    response.field.add(name="status", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"{_PACKAGE}.{each.name}") for each in (request, response)]
    one, other = (message_factory.GetMessageClass(each) for each in found)
    return one, other


_REQUEST, _RESPONSE = _messages()

CHECK = Method(f"{_PACKAGE}.Health", "Check", _REQUEST, _RESPONSE)


def check_request(service: str) -> Message:
    """A question for a service's health; without a name, for the whole server's."""
    request: Any = _REQUEST
    made: Message = request(service=service)
    return made


def health_check(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """Returns what asks the server of a channel for the health of a service, of either kind of channel."""
    return channel.unary_unary(
        CHECK.path,
        request_serializer=CHECK.request.SerializeToString,
        response_deserializer=CHECK.response.FromString,
    )


def read_health(response: Any) -> Health:
    """Reads the answer."""
    return _HEALTH.get(response.status, Health.UNKNOWN)


PROBE_SECONDS = 2.0
"""Time a verifier has to say whether it serves again."""
