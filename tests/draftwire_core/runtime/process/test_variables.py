"""The documented environment variables are those that are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from drafter_service.settings import DrafterSettings
from draftwire.cli.app import app
from draftwire_core.adapters.sglang.settings import SglangSettings
from draftwire_core.adapters.vllm.settings import VllmSettings
from draftwire_core.runtime.process.settings import variable_of
from draftwire_core.runtime.process.variables import VARIABLES, unknown_variables
from gateway_service.settings import GatewaySettings
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[4]


def of_the_command_line() -> set[str]:
    commands = [typer.main.get_command(app)]
    found: set[str] = set()
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            names = parameter.envvar or ()
            found |= {names} if isinstance(names, str) else set(names)
    return found


def test_every_variable_that_is_read_is_in_the_list_and_no_other() -> None:
    settings = (VerifierSettings, DrafterSettings, VllmSettings, SglangSettings)
    read = {variable_of(each, field) for each in settings for field in each.model_fields}
    read |= {f"DRAFTWIRE_GATEWAY_{field.upper()}" for field in GatewaySettings.model_fields}
    read |= of_the_command_line() | {"DRAFTWIRE_CONFIG", "DRAFTWIRE_API_KEYS"}
    for compose in ROOT.glob("docker-compose*.yml"):
        read |= set(re.findall(r"\$\{(DRAFTWIRE_\w+)", compose.read_text(encoding="utf-8")))
    assert read == VARIABLES


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DRAFTWIRE_THREDS", "DRAFTWIRE_THREADS"),
        ("DRAFTWIRE_GATEWAY_MAX_TOKEN", "DRAFTWIRE_GATEWAY_MAX_TOKENS"),
        ("DRAFTWIRE_SOMETHING_ELSE_ALTOGETHER", None),
    ],
)
def test_one_that_nothing_reads_is_named_with_the_likeliest(name: str, meant: str | None) -> None:
    others = ("PATH", "DRAFTWIRE_THREADS", "DRAFTWIRE_VERIFIER", "DRAFTWIRE_GATEWAY_LISTEN", "DRAFTWIRE_VLLM_LISTEN")
    assert list(unknown_variables([name, *others])) == [(name, meant)]


def test_variables_that_kubernetes_makes_of_a_services_name_are_left_alone() -> None:
    links = ("DRAFTWIRE_SERVICE_HOST", "DRAFTWIRE_SERVICE_PORT", "DRAFTWIRE_SERVICE_PORT_HTTP", "DRAFTWIRE_X_PORT")
    ports = ("DRAFTWIRE_PORT_50051_TCP", "DRAFTWIRE_PORT_50051_TCP_ADDR", "DRAFTWIRE_PORT_50051_TCP_PROTO")
    assert list(unknown_variables([*links, *ports])) == []
