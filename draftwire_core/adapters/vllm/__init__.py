"""Remote, swappable drafters for an unmodified vLLM server, under either of its model runners.

    vllm serve MODEL --worker-cls draftwire_vllm.worker.Worker \
        --speculative-config '{"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter",
                               "num_speculative_tokens": 5}'

It fits the versions of vLLM that `vllm_version` lists: the interfaces of proposers change between minor versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwire_core.adapters.vllm.remote_drafter import RemoteDrafter

__all__ = ["RemoteDrafter"]


def __getattr__(name: str) -> Any:
    # Imported when first used: vLLM imports `registration` in all its processes, whether or not they draft.
    if name != "RemoteDrafter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from draftwire_core.adapters.vllm.remote_drafter import RemoteDrafter

    return RemoteDrafter
