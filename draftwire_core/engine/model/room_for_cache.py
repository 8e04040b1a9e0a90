"""Whether the memory of the host has room for a KV cache, asked before the cache is made."""

from __future__ import annotations

from draftwire_core.engine.device.host import free_memory
from draftwire_core.engine.errors import ModelMemoryError
from draftwire_core.engine.model.packed_model import PackedModel

SETTING = "--kv-slots"
"""The setting of a model that a service loads."""
OF_TARGET = "the target's --kv-slots"
"""The setting of a model next to a target, which has as many slots."""


def check_room(model: PackedModel, slot_bytes: int, setting: str = SETTING, *, has_types: bool = True) -> None:
    """Raises ModelMemoryError if a model's KV cache, not made yet, does not fit into the memory that is free.

    A cache is zeros, which take memory only as they are written: one that does not fit would end the process later, in
    the middle of its work. GPUs report it by themselves.

    slot_bytes: bytes of a slot in all layers. setting: the one that says how many slots there are. has_types: whether a
    setting chooses the type of keys and values.
    """
    free = free_memory()
    if model.device.type != "cpu" or free is None:
        return
    slots = model.pool.capacity
    needed = slot_bytes * (slots + 1)
    if needed > free:
        smaller = "" if model.kv_dtype == "q8_0" or not has_types else ", or smaller ones (--kv-dtype q8_0)"
        raise ModelMemoryError(
            f"model {model.name}: its KV cache takes {needed / 2**30:.1f} GiB, {slots} slots of "
            f"{slot_bytes / 2**10:.1f} KiB, but {free / 2**30:.1f} GiB of memory are free: use fewer slots "
            f"({setting}){smaller}"
        )
