"""The target's hidden states as verdicts bring them."""

import torch

from draftwire.v1 import verdict_pb2
from service_runtime.errors import invalid_field
from service_runtime.handshake import shown

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def read_hidden_state(message: verdict_pb2.HiddenState, hidden_size: int) -> torch.Tensor:
    """A state [hidden_size]. Raises ServiceError."""
    dtype = _DTYPES.get(message.dtype)
    if dtype is None:
        raise invalid_field("hidden_state.dtype", f"must be one of {', '.join(_DTYPES)}, got {shown(message.dtype)!r}")
    wanted = hidden_size * dtype.itemsize
    if len(message.values) != wanted:
        raise invalid_field(
            "hidden_state.values",
            f"must be {wanted} bytes, {hidden_size} values of {message.dtype}, got {len(message.values)}: these heads "
            "were made for a target of that hidden size",
        )
    return torch.frombuffer(bytearray(message.values), dtype=dtype)
