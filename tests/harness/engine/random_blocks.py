"""Weights in blocks with random bytes."""

import gguf
import numpy as np
import torch

from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType

HALVES: dict[BlockType, tuple[int, ...]] = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "mxfp4": (),
}
"""Places of the float16 scales in a unit of each format."""


def random_blocks(kind: BlockType, outputs: int, inputs: int, seed: int = 0, byte: int | None = None) -> torch.Tensor:
    """Returns a weight, uint8 [outputs, bytes of a row], of random bytes and scales. byte: all bytes but the scales"""
    rng, form = np.random.default_rng(seed), FORMATS[kind]
    units = rng.integers(0, 256, (outputs, inputs // form.inputs, form.size), dtype=np.uint8)
    if byte is not None:
        units[:] = byte
    for at in HALVES[kind]:
        scales = rng.uniform(-0.01, 0.01, (*units.shape[:2], 1)).astype(np.float16)
        units[..., at : at + 2] = scales.view(np.uint8)
    if kind == "mxfp4":
        units[..., 0] = rng.integers(0, 130, units.shape[:2])
    return torch.from_numpy(units.reshape(outputs, -1))


def values(kind: BlockType, weight: torch.Tensor) -> torch.Tensor:
    """Returns the values of a weight in blocks, float32 [outputs, inputs], by gguf's reference."""
    return torch.from_numpy(gguf.quants.dequantize(weight.numpy(), gguf.GGMLQuantizationType[kind.upper()]))
