"""Client for ``grpc.health.v1``, the health of gRPC services.

The messages are built here, in a descriptor pool of their own, so that the SDK does not need grpcio-health-checking
and does not conflict with it in the same process.
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
    """Health of a service, as it reports it."""

    SERVING = "serving"
    """The service accepts calls."""
    NOT_SERVING = "not_serving"
    """The service accepts no calls, because it is starting or shutting down."""
    UNKNOWN = "unknown"
    """The service does not report its health."""


_HEALTH = {1: Health.SERVING, 2: Health.NOT_SERVING}


def _messages() -> tuple[type[Message], type[Message]]:
    """Returns the classes of the request, which has a service name, and the response, which has a status number."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package=_PACKAGE, syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    response = file.message_type.add(name="HealthCheckResponse")
    # An enum is an int32 on the wire; declared as one, numbers newer than this SDK do no harm.
    response.field.add(name="status", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    pool: Any = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [pool.FindMessageTypeByName(f"{_PACKAGE}.{each.name}") for each in (request, response)]
    one, other = (message_factory.GetMessageClass(each) for each in found)
    return one, other


_REQUEST, _RESPONSE = _messages()

CHECK = Method(f"{_PACKAGE}.Health", "Check", _REQUEST, _RESPONSE)


def check_request(service: str) -> Message:
    """Returns the request for a service's health; an empty name means the whole server."""
    request: Any = _REQUEST
    made: Message = request(service=service)
    return made


def health_check(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """Returns the callable for health checks on a channel, sync or asyncio."""
    return channel.unary_unary(
        CHECK.path,
        request_serializer=CHECK.request.SerializeToString,
        response_deserializer=CHECK.response.FromString,
    )


def read_health(response: Any) -> Health:
    """Returns the health in a response."""
    return _HEALTH.get(response.status, Health.UNKNOWN)


PROBE_SECONDS = 2.0
"""Timeout of the health check of a lost verifier."""
