"""Remote, swappable drafters for an unmodified vLLM server, used as its `custom_class` proposer.

    vllm serve MODEL --worker-cls draftwire_vllm.worker.Worker \
        --speculative-config '{"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter",
                               "num_speculative_tokens": 5}'

It supports one minor version of vLLM, whose internal proposer interface changes between versions.
"""

from draftwire_vllm.remote_drafter import RemoteDrafter

__all__ = ["RemoteDrafter"]
