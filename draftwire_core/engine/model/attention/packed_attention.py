"""Attention over KV slots for packed batches, behind transformers' attention interface.

The order of every row's sums depends on the row's own context alone (law 1). A row therefore gets the same bits alone,
next to other sequences, in a prompt chunk, or as a node of a drafted tree. On CPUs, compiled code processes each row's
positions in order (attention.py). Without it, scores and values are multiplied in blocks of a fixed number of
positions, and the blocks are summed in a fixed order. On GPUs kernels of our own do (slot_batch.py). Without them
a GPU multiplies blocks as well, but its library chooses the order of a product's sums by the product's shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from transformers import AttentionInterface

from draftwire_core.engine.kernels import attention as compiled_attention
from draftwire_core.engine.kernels.kv_rows import STORED, elements, widened
from draftwire_core.engine.kernels.recurrent.recurrence import RecurrenceCall
from draftwire_core.engine.kernels.structs import StoredRows
from draftwire_core.engine.kv.kv_slots import KvCache
from draftwire_core.engine.model.features.taps import TapReading
from draftwire_core.engine.model.packed_batch import KEY_BLOCK, LaneGroup, PackedBatch
from draftwire_core.engine.model.rows import FixedRows
from draftwire_core.engine.model.state_plan import StatePlan

ATTENTION_NAME = "draftwire_packed"
CHUNKED = "chunked_attention"
"""The type of a layer with chunks, in configurations of transformers."""

_MASKED = ("PhimoeAttention",)
"""Attentions that leave the window of their configuration to the mask, which packed attention does not receive."""

_LEAST_EXPONENT = -80.0
"""Attention weights are at least e^-80 of the greatest: these vanish in float32 sums, and smaller ones get denormal."""

_PIECE_ELEMENTS = 1 << 17
"""Elements of keys or values widened at a time: half a megabyte, which fits into a core's second-level cache."""


@dataclass(slots=True)
class ForwardPass:
    """A running model call."""

    batch: PackedBatch | FixedRows
    cache: KvCache
    shared: object = None
    """Data that the first layer prepares for the layers after it."""
    lent: dict[int, int] = field(default_factory=dict)
    """Layers whose keys and values later layers use again, by the identity of their keys."""
    plan: StatePlan | None = None
    """The work of recurrent layers; None in models without such layers."""
    recurrence: tuple[RecurrenceCall, StoredRows] | None = None
    """The arrays that fused recurrent layers have used last, for the next ones; and the rows whose inputs they keep."""
    reading: TapReading | None = None
    """Reads hidden states between the layers; None if no tap does."""

    @property
    def packed_batch(self) -> PackedBatch:
        """The batch, for compiled layers, which run on CPUs alone."""
        return cast(PackedBatch, self.batch)


# Not passed as keyword arguments, since some model classes drop unknown ones.
_current: ContextVar[ForwardPass] = ContextVar("draftwire_packed_batch")


@contextmanager
def packed_context(batch: PackedBatch | FixedRows, cache: KvCache) -> Iterator[None]:
    """Sets the batch and the cache of model calls within the context. If the context ends without an error, the states
    of recurrent layers have moved on."""
    plan = StatePlan(cast(PackedBatch, batch), cache.states) if cache.states is not None else None
    token = _current.set(ForwardPass(batch, cache, plan=plan))
    try:
        yield
    except BaseException:
        if plan is not None:
            plan.abandon()
        raise
    finally:
        _current.reset(token)
    if plan is not None:
        plan.finish(cache.bytes)


def in_packed_pass() -> bool:
    """Whether a packed model call is running."""
    return _current.get(None) is not None


def current_pass() -> ForwardPass:
    """The running model call."""
    return _current.get()


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Writes the rows' keys and values to their slots and computes each row's attention to its visible slots.

    query [1, heads, rows, dim], key and value [1, kv_heads, rows, dim]; returns [1, rows, heads, value dim].
    `s_aux` [heads] are attention sinks: extra scores that take probability but have no value.
    """
    # RowExactFunctions of the caller, which are for CPUs: these products have an order of their own.
    plain = torch._C.DisableTorchFunction() if query.device.type == "cpu" else nullcontext()
    with plain:
        attended = _attended(module, query, key, value, scaling, sliding_window, softcap, s_aux)
    return attended.to(query.dtype).unsqueeze(0), None


def _attended(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """Like `packed_attention`, of any type and without the first dimension."""
    under_way = current_pass()
    batch, cache = under_way.batch, under_way.cache
    layer = kv_layer(module, key, under_way)
    if type(module).__name__ in _MASKED:
        sliding_window = module.config.sliding_window
    if isinstance(batch, FixedRows):
        factor = scaling if scaling is not None else query.shape[-1] ** -0.5
        new = key[0], value[0]
        stored = cache.layer(layer, *new)
        return batch.write_and_attend(query[0], new, stored, factor, sliding_window, softcap, s_aux)
    if layer == module.layer_idx:
        keys, values = cache.write(layer, batch.slots, key[0], value[0])
    else:
        keys, values = cache.layer(layer, key[0], value[0])
    scaled = query[0].float() * (scaling if scaling is not None else query.shape[-1] ** -0.5)
    chunk = chunk_of(module)
    if compiled_attention.fits(keys, values):
        return compiled_attention.attend(
            batch.slot_lanes, scaled.contiguous(), keys, values, sliding_window, softcap, s_aux, chunk
        )
    out = torch.empty(len(batch), query.shape[1], value.shape[-1], dtype=query.dtype, device=query.device)
    for group in batch.groups:
        mask, visible = group.mask(sliding_window, chunk)
        result = _attend(group, scaled, keys, values, mask, visible, softcap, s_aux, cache)
        out[group.result_rows] = result[group.results].to(out.dtype)
    return out


def kv_layer(module: torch.nn.Module, key: torch.Tensor, under_way: ForwardPass) -> int:
    """The layer under which the keys and values of an attention are cached: its own, or the earlier one whose keys and
    values it uses again (as in Gemma 3n and 4)."""
    own: int = module.layer_idx
    if getattr(module, "store_full_length_kv", False):
        under_way.lent[id(key)] = own  # the model's code holds these keys until its last layer has run
    elif getattr(module, "is_kv_shared_layer", False):
        return under_way.lent.get(id(key), own)
    return own


def chunk_of(module: torch.nn.Module) -> int | None:
    """Positions of the chunks that an attention does not look beyond (as in Llama 4); None if it has no chunks."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    if config is None or not kinds or kinds[module.layer_idx] != CHUNKED:
        return None
    chunk: int = config.attention_chunk_size
    return chunk


def _multiply_blocks(
    cache: KvCache, stored: torch.Tensor, group: LaneGroup, left: torch.Tensor, transposed: bool, out: torch.Tensor
) -> torch.Tensor:
    """Multiplies `left` [kv_heads * lanes * blocks, rows, inner] by the group's blocks of `stored` keys or values.

    Processes a few heads at a time, so that gathered and widened blocks are multiplied while still in the processor's
    cache. Each block is a separate product, so this changes no bits.
    """
    kv_heads, _, width = stored.shape
    dim = elements(stored)
    blocks = group.lanes * group.blocks
    step = max(1, _PIECE_ELEMENTS // (blocks * KEY_BLOCK * dim)) if left.device.type == "cpu" else kv_heads
    for head in range(0, kv_heads, step):
        heads = stored[head : head + step]
        shape = (len(heads), blocks * KEY_BLOCK, dim)
        gathered = cache.scratch("gathered", (*shape[:2], width), stored)
        right = torch.index_select(heads, 1, group.keys, out=gathered)
        if right.dtype == STORED:
            right = widened(right)
        elif right.dtype != left.dtype:
            right = cache.scratch("widened", shape, left).copy_(right)
        right = right.view(-1, KEY_BLOCK, dim)
        piece = slice(head * blocks, head * blocks + len(right))
        torch.bmm(left[piece], right.transpose(1, 2) if transposed else right, out=out[piece])
    return out


def _attend(
    group: LaneGroup,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    visible: torch.Tensor,
    softcap: float | None,
    s_aux: torch.Tensor | None,
    cache: KvCache,
) -> torch.Tensor:
    """Attention of one lane group: float32 [lanes * queries, heads, value dim]."""
    heads, _, dim = query.shape
    lanes, queries, blocks = group.lanes, group.queries, group.blocks
    kv_heads = len(keys)
    shared = heads // kv_heads
    block_queries = (
        query.index_select(1, group.rows)
        .view(kv_heads, shared, lanes, queries, dim)
        .permute(0, 2, 1, 3, 4)
        .unsqueeze(2)
        .expand(kv_heads, lanes, blocks, shared, queries, dim)
        .reshape(kv_heads * lanes * blocks, shared * queries, dim)
    )
    count = len(block_queries)
    scores = cache.scratch("scores", (count, shared * queries, KEY_BLOCK), query)
    scores = _multiply_blocks(cache, keys, group, block_queries, True, scores)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(kv_heads, lanes, blocks, shared, queries, KEY_BLOCK).add_(mask)
    highest = scores.amax(dim=(2, 5), keepdim=True)
    if s_aux is not None:
        sinks = s_aux.float().view(kv_heads, 1, 1, shared, 1, 1)
        highest = torch.maximum(highest, sinks)
    # exp of -inf is slow; hidden positions get their exact zeros from the mask instead.
    weights = scores.sub_(highest).clamp_(min=_LEAST_EXPONENT).exp_().mul_(visible)
    total = _sum_blocks(weights.sum(dim=-1, keepdim=True))
    if s_aux is not None:
        total = total + torch.exp(sinks - highest).squeeze(2)
    summed = cache.scratch("summed", (count, shared * queries, elements(values)), query)
    summed = _multiply_blocks(cache, values, group, weights.view(count, -1, KEY_BLOCK), False, summed)
    summed = _sum_blocks(summed.view(kv_heads, lanes, blocks, shared, queries, -1)) / total
    return summed.permute(1, 3, 0, 2, 4).reshape(lanes * queries, heads, -1)


def _sum_blocks(parts: torch.Tensor) -> torch.Tensor:
    """Sums over the blocks, dimension 2, pairwise.

    The order of torch.sum depends on the other dimensions; this order is fixed. Trailing empty blocks, which pad a lane
    to the longest of its group, add exact zeros.
    """
    while (count := parts.shape[2]) > 1:
        paired = parts[:, :, 0 : count - 1 : 2] + parts[:, :, 1:count:2]
        parts = torch.cat([paired, parts[:, :, -1:]], dim=2) if count % 2 else paired
    return parts.squeeze(2)


AttentionInterface.register(ATTENTION_NAME, packed_attention)
