"""The vLLM that the adapter runs in: its version, and which of its model runners calls the adapter."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

KNOWN = ("0.32", "0.33")
"""Minor versions whose interfaces the adapter was compared with "
"(tests/draftwire_core/adapters/vllm/test_interface.py)."""
METHOD = "custom_class"
PROPOSER = "draftwire_vllm.RemoteDrafter"
"""The model that a speculative configuration of that method names, under either runner."""
REGISTERED = "draftwire_registered"
"""Attribute of the `init_speculator` that `registration` has put in the place of vLLM's."""
_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


class WrongRunnerError(RuntimeError):
    """Raised where vLLM would never call the adapter."""


def unknown_version(version: str) -> str | None:
    """Returns what to warn of if the adapter was not compared with a version of vLLM; None if it was."""
    if any(version == known or version.startswith(f"{known}.") for known in KNOWN):
        return None
    return (
        f"vLLM {version} is unknown to draftwire_vllm, which fits {' and '.join(KNOWN)}: vLLM changes the "
        "interfaces of proposers between minor versions"
    )


def registered() -> bool:
    """Whether the speculator for runner V2 is registered in this process."""
    module = sys.modules.get("vllm.v1.worker.gpu.spec_decode")
    return module is not None and hasattr(module.init_speculator, REGISTERED)


def runner_and_reason(
    runner: Any, environment: Mapping[str, str] = os.environ, *, has_v2: bool | None = None
) -> tuple[str, str]:
    """Returns which of vLLM's model runners runs, and why.

    runner: the worker's. has_v2: whether the speculator for runner V2 is registered; None to look. Raises
    WrongRunnerError for a runner V2 without it, which would never call the adapter.
    """
    has_v2 = registered() if has_v2 is None else has_v2
    forced = environment.get(_VARIABLE)
    if hasattr(runner, "drafter"):
        if forced is not None:
            return "V1", f"{_VARIABLE}={forced}"
        if has_v2:
            return "V1", "vLLM's runner V2 does not support this platform or configuration, as vLLM's log says"
        return "V1", "speculator not registered with vLLM's model runner V2"
    if has_v2 and hasattr(runner, "speculator"):
        return "V2", f"{_VARIABLE}={forced}" if forced is not None else "draftwire's speculator is registered with it"
    why = f"{_VARIABLE}={forced} asks for it" if forced is not None else "of its configuration"
    raise WrongRunnerError(
        f"vLLM chose a model runner that calls no {METHOD} proposer ({type(runner).__module__}), because {why}; "
        "let vLLM load the plugin 'draftwire' (VLLM_PLUGINS), which registers draftwire's speculator with runner V2, "
        f"or unset {_VARIABLE}, and vLLM takes runner V1 for {METHOD}"
    )
