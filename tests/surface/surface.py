"""The public surface, collected from the code: all names that users may write down.

    python -m tests.surface.surface

writes surface.json after an intended change.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import draftwire
import draftwire.edge
import draftwire_core.engine
import draftwire_sglang.plugin
import draftwire_vllm
from drafter_service.settings import DrafterSettings
from draftwire.cli.app import app
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.adapters.vllm.settings import VllmSettings
from draftwire_core.engine.loading.methods import METHODS
from draftwire_core.runtime.process.variables import VARIABLES
from gateway_service.settings import GatewaySettings
from tests.surface.log_events import log_events
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("surface.json")
VLLM_CLASSES = ("draftwire_vllm.RemoteDrafter", "draftwire_vllm.worker.Worker")
"""Names that users write into vLLM's configuration."""
_METRIC = re.compile(r"draftwire:[a-z_]+")


def collect() -> dict[str, Any]:
    """Returns the whole surface in a form that JSON preserves."""
    return {
        "draftwire": _names(draftwire),
        "draftwire.edge": _names(draftwire.edge),
        "draftwire_vllm": _names(draftwire_vllm),
        "draftwire_core.engine": _names(draftwire_core.engine),
        "classes of vLLM's configuration": [name for name in VLLM_CLASSES if _is_class(name)],
        "algorithm of SGLang": draftwire_sglang.plugin.NAME,
        "commands": dict(_commands()),
        "flags of the services": {
            "python -m verifier_service": _flags(VerifierSettings),
            "python -m drafter_service": _flags(DrafterSettings),
            "python -m gateway_service": _flags(GatewaySettings),
            "draftwire_vllm": _flags(VllmSettings),
            "draftwire_sglang": _flags(SglangSettings),
        },
        "environment variables": sorted(VARIABLES),
        "error reasons": dict(ErrorReason.items()),
        "drafters in the verifier": {f"local:{name}": _options(method.options) for name, method in METHODS.items()},
        "metrics": sorted(_metrics()),
        "log events": sorted(log_events()),
    }


def _names(module: Any) -> dict[str, str]:
    """Returns the public names of a module, with the signatures of callables."""
    return {name: _signature(getattr(module, name)) for name in sorted(module.__all__)}


def _signature(value: Any) -> str:
    """Returns parameters without annotations: those are for type checkers, and include the modules of types."""
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):  # it has no signature
        return ""
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _is_class(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if importlib.util.find_spec("vllm") is None and module != "draftwire_vllm":
        source = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        return any(
            isinstance(each, ast.ImportFrom) and each.names[0].name == attribute for each in ast.parse(source).body
        )
    return inspect.isclass(getattr(importlib.import_module(module), attribute))


def _commands() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each command with its parameters. Help texts are left out, so that they can be improved at any time."""
    waiting: list[tuple[str, Any]] = [("draftwire", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        waiting += [(f"{name} {each}", found) for each, found in getattr(command, "commands", {}).items()]
        parameters = {
            " ".join(each.opts + each.secondary_opts) or each.name: {
                "metavar": each.metavar,
                "default": None if callable(each.default) else each.default,
                "required": each.required,
                "many": getattr(each, "multiple", False) or each.nargs != 1,
                "variable": each.envvar,
            }
            for each in command.params
        }
        yield name, parameters


def _flags(settings: Any) -> dict[str, str]:
    """Returns the fields of settings with their defaults."""
    return {f"--{name.replace('_', '-')}": repr(field.default) for name, field in sorted(settings.model_fields.items())}


def _options(options: Any) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(options)}


def _metrics() -> set[str]:
    """Returns the metrics of docs/monitoring.md, which other tests compare with those that are served."""
    return set(_METRIC.findall((ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")))


def as_json(value: Any) -> Any:
    """Returns a value as it is after being written and read."""
    return json.loads(json.dumps(value, sort_keys=True, default=str))


if __name__ == "__main__":
    FILE.write_text(json.dumps(as_json(collect()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
