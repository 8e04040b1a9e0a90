from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_EMPTY_PROMPT: _ClassVar[ErrorReason]
    ERROR_REASON_CONTEXT_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_OUT_OF_RANGE: _ClassVar[ErrorReason]
    ERROR_REASON_DRAFTER_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_DRAFTER_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_DRAFTER_UNREACHABLE: _ClassVar[ErrorReason]
    ERROR_REASON_TOKENIZER_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_PROTOCOL_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_UNSUPPORTED_DRAFTER: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_SEQUENCE: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED_PROPOSAL: _ClassVar[ErrorReason]
    ERROR_REASON_CREDIT_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_SYNC: _ClassVar[ErrorReason]
    ERROR_REASON_AT_CAPACITY: _ClassVar[ErrorReason]
    ERROR_REASON_SHUTTING_DOWN: _ClassVar[ErrorReason]
    ERROR_REASON_HANDSHAKE_EXPECTED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_ROLLOUT_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_BUSY: _ClassVar[ErrorReason]
    ERROR_REASON_IDLE: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_ENABLED: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_EMPTY_PROMPT: ErrorReason
ERROR_REASON_CONTEXT_EXCEEDED: ErrorReason
ERROR_REASON_TOKEN_OUT_OF_RANGE: ErrorReason
ERROR_REASON_DRAFTER_NOT_FOUND: ErrorReason
ERROR_REASON_DRAFTER_EXISTS: ErrorReason
ERROR_REASON_DRAFTER_UNREACHABLE: ErrorReason
ERROR_REASON_TOKENIZER_MISMATCH: ErrorReason
ERROR_REASON_PROTOCOL_MISMATCH: ErrorReason
ERROR_REASON_UNSUPPORTED_DRAFTER: ErrorReason
ERROR_REASON_UNKNOWN_SEQUENCE: ErrorReason
ERROR_REASON_MALFORMED_PROPOSAL: ErrorReason
ERROR_REASON_CREDIT_EXCEEDED: ErrorReason
ERROR_REASON_OUT_OF_SYNC: ErrorReason
ERROR_REASON_AT_CAPACITY: ErrorReason
ERROR_REASON_SHUTTING_DOWN: ErrorReason
ERROR_REASON_HANDSHAKE_EXPECTED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_MESSAGE_TOO_LARGE: ErrorReason
ERROR_REASON_ROLLOUT_NOT_FOUND: ErrorReason
ERROR_REASON_BUSY: ErrorReason
ERROR_REASON_IDLE: ErrorReason
ERROR_REASON_NOT_ENABLED: ErrorReason
