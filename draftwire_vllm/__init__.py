"""The names that users write into vLLM's settings; the adapter itself is `draftwire_core.adapters.vllm`.

    vllm serve MODEL --worker-cls draftwire_vllm.worker.Worker \
        --speculative-config '{"method": "custom_class", "model": "draftwire_vllm.RemoteDrafter",
                               "num_speculative_tokens": 5}'

These names stay as they are, wherever the adapter's modules are.
"""

from draftwire_core.adapters.vllm import __all__ as __all__
from draftwire_core.adapters.vllm import __getattr__ as __getattr__
