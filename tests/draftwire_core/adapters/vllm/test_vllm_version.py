"""What the adapter says of the vLLM that it runs in."""

from types import SimpleNamespace

import pytest

from draftwire_core.adapters.vllm.vllm_version import WrongRunnerError, runner_and_reason, unknown_version


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1", "0.33", "0.33.0+cpu"])
def test_versions_that_it_fits(version: str) -> None:
    assert unknown_version(version.removesuffix("+cpu")) is None


@pytest.mark.parametrize("version", ["0.34.0", "0.3.3", "0.330.0", "1.0"])
def test_other_versions_are_warned_of(version: str) -> None:
    problem = unknown_version(version)
    assert problem is not None
    assert f"vLLM {version} is unknown to draftwire_vllm, which fits 0.32 and 0.33" in problem


def test_runner_v1() -> None:
    runner = SimpleNamespace(drafter=object())
    without = "speculator not registered with vLLM's model runner V2"
    assert runner_and_reason(runner, {}, has_v2=False) == ("V1", without)
    assert runner_and_reason(runner, {}) == ("V1", without)  # there is no vLLM here
    name, why = runner_and_reason(runner, {}, has_v2=True)
    assert name == "V1"
    assert "does not support this platform or configuration" in why
    forced = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert runner_and_reason(runner, forced, has_v2=True) == ("V1", "VLLM_USE_V2_MODEL_RUNNER=0")


def test_runner_v2() -> None:
    runner = SimpleNamespace(speculator=object())
    assert runner_and_reason(runner, {}, has_v2=True) == ("V2", "draftwire's speculator is registered with it")
    forced = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert runner_and_reason(runner, forced, has_v2=True) == ("V2", "VLLM_USE_V2_MODEL_RUNNER=1")


def test_a_runner_that_never_calls_the_adapter_is_refused() -> None:
    forced = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    with pytest.raises(WrongRunnerError, match="because VLLM_USE_V2_MODEL_RUNNER=1 asks for it; let vLLM load the plu"):
        runner_and_reason(SimpleNamespace(speculator=None), forced, has_v2=False)
    with pytest.raises(WrongRunnerError, match="because of its configuration"):
        runner_and_reason(SimpleNamespace(), {}, has_v2=True)
