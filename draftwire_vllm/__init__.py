"""Remote, swappable drafters for an unmodified vLLM server, used as its `custom_class` proposer.

    vllm serve MODEL --worker-cls draftwire_vllm.worker.Worker \
        --speculative-config '{"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter",
                               "num_speculative_tokens": 5}'

It fits the versions of vLLM that `vllm_version` lists: the interface of proposers changes between minor versions.
"""

from draftwire_vllm.remote_drafter import RemoteDrafter

__all__ = ["RemoteDrafter"]
