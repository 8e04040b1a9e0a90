"""The sampling parameters of a vLLM request under coupled sampling, as the target and the drafters both use them."""

from __future__ import annotations

import hashlib
from typing import Any

from draftwire_core.adapters.common.request_options import RequestOptions
from draftwire_core.engine.sampling.sampling_params import SamplingParams

_SEED_MASK = (1 << 64) - 1
_MOST_TOP_K = (1 << 31) - 1
"""More tokens than any vocabulary has. vLLM takes any integer for a top_k that keeps all of them."""


def request_sampling(request_id: str, params: Any, engine_seed: int) -> SamplingParams:
    """Returns the parameters of a request. params: vLLM's SamplingParams. engine_seed: vLLM's `--seed`.

    A request without a seed gets one that is a hash of `engine_seed` and its id, so that all ranks of a model that is
    split draw the same tokens. vLLM makes the ids of requests unique.
    """
    seed = params.seed
    if seed is None:
        digest = hashlib.blake2b(f"{engine_seed}/{request_id}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little")
    # vLLM writes -1 as well as 0 for a top_k that keeps all tokens, and has checked the ranges of all parameters.
    return SamplingParams(
        temperature=params.temperature,
        top_k=min(max(0, params.top_k), _MOST_TOP_K),
        top_p=params.top_p,
        **{"seed": seed & _SEED_MASK, "min_p": params.min_p, **RequestOptions.of(params).filters},
    )
