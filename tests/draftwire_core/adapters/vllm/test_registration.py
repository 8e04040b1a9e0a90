"""The registration with vLLM's runner V2, as far as it goes without vLLM; with it: `test_with_runner_v2.py`."""

from __future__ import annotations

import sys
import tomllib
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from draftwire_core.adapters.vllm import registration
from draftwire_core.adapters.vllm.vllm_version import METHOD, PROPOSER, REGISTERED
from draftwire_core.runtime.process.logs import configure_logs
from tests.harness.checkout import ROOT


def configuration(method: str = METHOD, model: str = PROPOSER, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "speculative_config": SimpleNamespace(method=method, model=model, enable_adaptive_verification=False),
        "parallel_config": SimpleNamespace(prefill_context_parallel_size=1),
    }
    return SimpleNamespace(**fields | changes)


OTHERS = pytest.mark.parametrize(
    "config",
    [configuration("eagle3"), configuration(model="somebody.Elses"), configuration(speculative_config=None)],
    ids=["another method", "another proposer", "none"],
)


def test_vllm_finds_it_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [entry] = project["entry-points"]["vllm.general_plugins"].values()
    module, _, name = entry.partition(":")
    assert getattr(import_module(module), name) is registration.register


def test_an_unknown_version_is_left_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it but its version is read: this one has no runner V2."""
    unknown = ModuleType("vllm")
    unknown.__version__ = "0.99.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", unknown)
    configure_logs("json", "info", names=("draftwire_core",))
    registration.register()
    said = capsys.readouterr()
    assert "speculator not registered with vLLM's model runner V2" in said.out + said.err
    assert "vLLM 0.99.0 is unknown to draftwire_vllm" in said.out + said.err


def test_what_a_configuration_names_is_the_proposer() -> None:
    module, _, name = PROPOSER.rpartition(".")
    assert getattr(import_module(module), name).__name__ == "RemoteDrafter"
    assert registration.names_draftwire(configuration().speculative_config)


@OTHERS
def test_other_speculators_are_vllms(config: Any) -> None:
    made = registration._making(lambda *arguments: arguments)
    assert made(config, "device", "states") == (config, "device", "states")
    assert hasattr(made, REGISTERED)


@OTHERS
def test_other_configurations_are_supported_as_before(config: Any) -> None:
    unsupported = registration._supporting(lambda _: ["speculative method 'custom_class'", "another"])
    assert unsupported(config) == ["speculative method 'custom_class'", "another"]


def test_draftwire_is_supported_by_runner_v2_where_the_rest_is() -> None:
    unsupported = registration._supporting(lambda _: ["speculative method 'custom_class'", "another"])
    assert unsupported(configuration()) == ["another"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parallel_config": SimpleNamespace(prefill_context_parallel_size=2)}, "prefill context parallelism"),
        ({"watermark_config": object()}, "watermarking"),
        (
            {"speculative_config": SimpleNamespace(method=METHOD, model=PROPOSER, enable_adaptive_verification=True)},
            "enable_adaptive_verification",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NotImplementedError, match=named):
        registration._check(configuration(**changes))
    registration._check(configuration())


@pytest.mark.parametrize(
    ("platform", "module", "name"),
    [("cpu", "cpu_worker", "CPUWorker"), ("xpu", "xpu_worker", "XPUWorker"), ("cuda", "gpu_worker", "Worker")],
)
def test_the_worker_is_that_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, module: str, name: str
) -> None:
    vllms = type(name, (), {})
    current = SimpleNamespace(is_cpu=lambda: platform == "cpu", is_xpu=lambda: platform == "xpu")
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.distributed.parallel_state": {"get_tp_group": None},
        "vllm.platforms": {"current_platform": current},
        "vllm.v1.sample.logits_processor": {"LogitBiasLogitsProcessor": None},
        f"vllm.v1.worker.{module}": {name: vllms},
    }
    for path, contents in modules.items():
        stand_in = ModuleType(path)
        stand_in.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, path, stand_in)
    spec = spec_from_file_location("worker_of_a_platform", ROOT / "draftwire_core/adapters/vllm/worker.py")
    assert spec is not None and spec.loader is not None
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    assert issubclass(loaded.Worker, vllms)
