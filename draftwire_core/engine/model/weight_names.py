"""The names of weights; apart from the model, since settings need them without torch."""

from typing import Literal

QuantisedWeights = Literal["q8_0", "q4_0"]
"""Blocks of 32 inputs, quantised at load as GGUF does, to 8 or 4 bits with a scale per block."""

Weights = Literal["checkpoint", "int8", "int4", "q8_0", "q4_0"]
"""Weights of the linear layers: the checkpoint's, in the model's dtype; for drafters, 8-bit integers with a scale per
output or, on GPUs, 4-bit integers with a scale per 64 inputs of an output; or QuantisedWeights."""

TargetWeights = Literal["checkpoint", "q8_0", "q4_0"]
"""Weights that a target may have."""
