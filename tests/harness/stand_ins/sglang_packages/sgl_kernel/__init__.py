"""SGLang's compiled kernels for CPUs, in torch: those that a small model and NGRAM's verification need.

PyPI has no build of `sgl-kernel` for CPUs. With this package on the path, SGLang's own scheduler, workers and models
run on one: slowly, and with attention that sums over a token's own context in its order, so that a row's bits depend
on nothing else. That is what SGLang's deterministic mode promises on GPUs.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .attention import decode_attention, extend_attention
from .speculative import verify_tree_greedy

verify_tree_greedy_cpu = verify_tree_greedy


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Writes the slots of each request from its start to its end, one request after another."""
    parts = [
        req_to_token[request, start:end]
        for request, start, end in zip(
            req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
        )
    ]
    slots = torch.cat(parts)
    out_cache_loc[: len(slots)] = slots


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Gives each request's places from its start to its end the next slots."""
    taken = 0
    for request, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[request, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Writes the slots of the accepted rows, without gaps."""
    accepted = accept_index.flatten()
    accepted = accepted[accepted >= 0].long()
    accept_out_cache_loc[: len(accepted)] = out_cache_loc[accepted]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copies slots in each buffer, given by its address and the bytes of a slot; all are read before any is written."""
    for address, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        read = [ctypes.string_at(address + size * slot, size) for slot in src_loc.tolist()]
        for slot, content in zip(tgt_loc.tolist(), read, strict=True):
            ctypes.memmove(address + size * slot, content, size)


def _unused(name: str) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise NotImplementedError(name)

    return call


assign_draft_cache_locs_contiguous_cpu = _unused("assign_draft_cache_locs_contiguous_cpu")
build_tree_kernel_efficient_cpu = _unused("build_tree_kernel_efficient_cpu")
fill_bonus_tokens_cpu = _unused("fill_bonus_tokens_cpu")

torch.ops.sgl_kernel.decode_attention_cpu = decode_attention
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention
torch.ops.sgl_kernel.init_cpu_threads_env = lambda cores: "threads as they are"
