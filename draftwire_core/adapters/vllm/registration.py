"""The registration of draftwire's speculator with vLLM's model runner V2, as a plugin of vLLM.

vLLM loads the entry points `vllm.general_plugins` in each of its processes; draftwire's is `register`. Runner V2 has a
fixed list of speculators. So this module, and nothing else, replaces two functions of vLLM by functions that call them:

- `vllm.v1.worker.gpu.spec_decode.init_speculator`, which makes the runner's speculator: for a speculative
  configuration that names draftwire's proposer it makes a RemoteSpeculator;
- `VllmConfig._get_v2_model_runner_unsupported_features`, for which vLLM takes runner V1 unless it is empty: the method
  `custom_class` is not listed for such a configuration.

With any other configuration both return what vLLM's own return.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from draftwire_core.adapters.vllm.vllm_version import METHOD, PROPOSER, REGISTERED, unknown_version
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


def register() -> None:
    """Registers the speculator; does nothing if it is registered already. Called by vLLM.

    Refuses an unknown version of vLLM, with a warning: vLLM then takes runner V1 for draftwire.
    """
    from vllm import __version__

    problem = unknown_version(__version__)
    if problem is not None:
        log.warning("speculator not registered with vLLM's model runner V2", problem=problem)
        return
    # Only now: another version may not have these, and vLLM would not start.
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import spec_decode

    if hasattr(spec_decode.init_speculator, REGISTERED):
        return
    made = _making(spec_decode.init_speculator)
    spec_decode.init_speculator = made
    runner = sys.modules.get("vllm.v1.worker.gpu.model_runner")
    if runner is not None:  # it has imported the function by name
        runner.init_speculator = made  # type: ignore[attr-defined]
    VllmConfig._get_v2_model_runner_unsupported_features = _supporting(
        VllmConfig._get_v2_model_runner_unsupported_features
    )


def names_draftwire(speculative_config: Any) -> bool:
    """Whether a SpeculativeConfig asks for draftwire's drafters."""
    return speculative_config is not None and (speculative_config.method, speculative_config.model) == (
        METHOD,
        PROPOSER,
    )


def _making(init_speculator: Callable[..., Any]) -> Callable[..., Any]:
    def made(vllm_config: Any, device: Any, req_states: Any) -> Any:
        if not names_draftwire(vllm_config.speculative_config):
            return init_speculator(vllm_config, device, req_states)
        from vllm.distributed.parallel_state import get_tp_group
        from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

        from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator

        _check(vllm_config)
        BaseSpeculator.register(RemoteSpeculator)
        return RemoteSpeculator(vllm_config, device, req_states, get_tp_group())

    setattr(made, REGISTERED, True)
    return made


def _supporting(unsupported_features: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    def unsupported(self: Any) -> list[str]:
        features = unsupported_features(self)
        if names_draftwire(self.speculative_config):
            features = [each for each in features if each != f"speculative method '{METHOD}'"]
        return features

    return unsupported


def _check(vllm_config: Any) -> None:
    """Raises NotImplementedError for what runner V2 would ask of a speculator that this one cannot do."""
    if vllm_config.parallel_config.prefill_context_parallel_size > 1:
        raise NotImplementedError("draftwire's drafters do not work with prefill context parallelism")
    if getattr(vllm_config, "watermark_config", None) is not None:
        raise NotImplementedError("draftwire's drafters do not work with watermarking")
    if vllm_config.speculative_config.enable_adaptive_verification:
        raise NotImplementedError("draftwire's drafters do not work with enable_adaptive_verification")
