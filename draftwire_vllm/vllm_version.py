"""The vLLM that the adapter runs in: its version, and which of its model runners calls the proposer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

KNOWN = ("0.32", "0.33")
"""Minor versions whose interfaces the adapter was compared with (tests/draftwire_vllm/test_interface.py)."""
METHOD = "custom_class"
_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


class WrongRunnerError(RuntimeError):
    """Raised where vLLM would never call the proposer."""


def unknown_version(version: str) -> str | None:
    """Returns what to warn of if the adapter was not compared with a version of vLLM; None if it was."""
    if any(version == known or version.startswith(f"{known}.") for known in KNOWN):
        return None
    return (
        f"vLLM {version} is unknown to draftwire_vllm, which fits {' and '.join(KNOWN)}: vLLM changes the interface of "
        "proposers between minor versions"
    )


def runner_and_reason(runner: Any, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Returns which of vLLM's model runners runs, and why.

    runner: the worker's. Raises WrongRunnerError for one that has no proposer: runner V2, whose kinds of speculators
    are a fixed list. vLLM takes V1 for `custom_class` by itself unless the environment asks for V2.
    """
    forced = environment.get(_VARIABLE)
    if not hasattr(runner, "drafter"):
        why = f"{_VARIABLE}={forced} asks for it" if forced is not None else "of its configuration"
        raise WrongRunnerError(
            f"vLLM chose a model runner that calls no {METHOD} proposer ({type(runner).__module__}), because {why}; "
            f"unset {_VARIABLE}, and vLLM takes runner V1 for {METHOD}"
        )
    if forced is not None:
        return "V1", f"{_VARIABLE}={forced}"
    return "V1", f"vLLM's runner V2 has no {METHOD}"
