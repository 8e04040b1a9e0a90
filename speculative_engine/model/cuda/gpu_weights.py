"""Drafters' weights in 8 or 4 bits on GPUs, by torchao.

Not yet run on a GPU. The tests run the 8-bit code on a CPU, where int8_linear.py is faster.
"""

from __future__ import annotations

from torch import nn

_GROUP = 64
"""Inputs that share a scale in 4-bit weights."""


class GpuWeightsError(Exception):
    """Raised if weights cannot be stored in the requested number of bits; the message says why."""


def narrow_weights(model: nn.Module, bits: int) -> None:
    """Quantises the bfloat16 weights of all linear layers of `model` to 8 or 4 bits, in place; results stay bfloat16.

    8-bit weights have a scale per output, 4-bit weights one per 64 inputs of an output. Raises GpuWeightsError.
    """
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise GpuWeightsError(
            f"weights of {bits} bits on a GPU need torchao: pip install -e '.[gpu]' in a checkout ({error})"
        ) from error
    config = (
        Int8WeightOnlyConfig(set_inductor_config=False)
        if bits == 8
        else Int4WeightOnlyConfig(
            group_size=_GROUP,
            int4_packing_format="tile_packed_to_4d",  # torch's own kernel multiplies it
            set_inductor_config=False,
        )
    )
    try:
        quantize_(model, config)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise GpuWeightsError(f"torchao cannot store these weights in {bits} bits: {reason}") from error
