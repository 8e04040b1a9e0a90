"""Whether the Triton kernels can run a model on a device."""

from __future__ import annotations

import importlib.util
import os

import torch
from transformers import PretrainedConfig

from draftwire_core.engine.device.gpu import KernelsUnusableError, kernels_tried
from draftwire_core.engine.model.attention.packed_attention import CHUNKED
from draftwire_core.engine.model.model_facts import values_of_layers

MOST_DIM = 256
"""Longest head whose tiles fit into a processor's shared memory."""
_LEAST_CAPABILITY = (8, 0)
"""NVIDIA's compute capability that the products need: Ampere."""
_HEAD_SIZES = ("head_dim", "v_head_dim", "qk_head_dim", "global_head_dim")


def missing(device: torch.device, dtype: torch.dtype, config: PretrainedConfig, context_length: int) -> str | None:
    """Returns what the kernels lack for a model, in words; None if nothing.

    config: of the text decoder. context_length: of the longest sequence.

    On CPUs they run in Triton's interpreter, for tests.
    """
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        return "kernels run on GPUs"  # found without importing triton, which takes 70 MB
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    import triton

    if device.type == "cpu":
        return _unknown_chunks(config, context_length) if triton.knobs.runtime.interpret else "kernels run on GPUs"
    if device.type != "cuda" or torch.version.hip is not None:
        return f"kernels run on NVIDIA's GPUs, not on {device.type}"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return f"kernels need compute capability {'.'.join(map(str, _LEAST_CAPABILITY))}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"kernels are for bfloat16 and float16, not {str(dtype).removeprefix('torch.')}"
    longest = _longest_head(config)
    if longest > MOST_DIM:
        return f"kernels are for heads of up to {MOST_DIM} elements, not {longest}"
    return _unknown_chunks(config, context_length) or _trial(device)


def _unknown_chunks(config: PretrainedConfig, context_length: int) -> str | None:
    if CHUNKED in (getattr(config, "layer_types", None) or ()) and context_length > config.attention_chunk_size:
        return (
            f"kernels do not know attention in chunks of {config.attention_chunk_size} positions; "
            f"--context-length {config.attention_chunk_size} or less needs none"
        )
    return None


def _longest_head(config: PretrainedConfig) -> int:
    sizes = [size for name in _HEAD_SIZES for size in values_of_layers(config, name)]
    nope, rope = (getattr(config, f"qk_{each}_head_dim", None) for each in ("nope", "rope"))
    sizes.append((nope or 0) + (rope or 0))
    told = max(size for size in sizes if isinstance(size, int))
    heads = values_of_layers(config, "num_attention_heads")[0]  # none in models without attention
    return told or (config.hidden_size // heads if heads else 0)


def _trial(device: torch.device) -> str | None:
    """Runs the smallest kernel: Triton compiles its launcher with the host's C compiler."""
    from draftwire_core.engine.model.cuda.kernels.norm import rms_norm

    try:
        with kernels_tried(), torch.cuda.device(device):
            ones = torch.ones(1, 16, device=device)
            rms_norm(ones, ones[0], 1e-6, 0.0)
    except KernelsUnusableError as error:
        return str(error)
    return None
