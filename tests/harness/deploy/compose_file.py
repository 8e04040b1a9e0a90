"""docker-compose.yml as Compose reads it: variables resolved, and the services of a profile."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-?])(?P<otherwise>[^{}]*))?\}|(?P<wrong>))"
)


def variables(text: str) -> set[str]:
    """The names of the variables in a text."""
    return {found["plain"] or found["name"] for found in _VARIABLE.finditer(text)} - {None}


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """A text with its variables in place, by the rules of the Compose specification (those without nesting).

    Raises:
        ValueError: a variable without a value and without a default, or a dollar that begins none.
    """

    def value(found: re.Match[str]) -> str:
        if found["escaped"]:
            return "$"
        name, how = found["plain"] or found["name"], found["how"] or ""
        if not name:
            raise ValueError(f"a dollar without a variable in {text!r}")
        given = environment.get(name)
        if given is not None and (given or ":" not in how):
            return given
        if how.endswith("-"):
            return found["otherwise"]
        raise ValueError(f"{name} has no value in {text!r}")

    return _VARIABLE.sub(value, text)


def _resolved(node: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return interpolated(node, environment)
    if isinstance(node, list):
        return [_resolved(item, environment) for item in node]
    if isinstance(node, dict):
        return {key: _resolved(item, environment) for key, item in node.items()}
    return node


def read_compose(
    path: Path, environment: Mapping[str, str], profile: str | None = None, *, overrides: Sequence[Path] = ()
) -> dict[str, Any]:
    """The file, resolved, with others on top of it; with a profile, without the services that it leaves out.

    A variable of a service without a value is the environment's own, and goes where that has none.
    """
    file = _read(path, environment)
    for override in overrides:
        file = merged(file, _read(override, environment))
    services = file["services"]
    for service in services.values():
        told = {name: environment.get(name) if value is None else value for name, value in environment_of(service)}
        service["environment"] = {name: value for name, value in told.items() if value is not None}
    if profile is not None:
        file["services"] = {name: each for name, each in services.items() if profile in each["profiles"]}
    return file


def merged(base: Any, override: Any, key: str = "") -> Any:
    """Two files as Compose puts them together: mappings by key, volumes by where they are mounted.

    Raises:
        ValueError: another list in both, which is not known here.
    """
    if isinstance(base, dict) and isinstance(override, dict):
        return base | {name: merged(base.get(name), value, name) for name, value in override.items()}
    if isinstance(base, list) and isinstance(override, list):
        if key != "volumes":
            raise ValueError(f"{key}: is not known here")
        return list(({mount.split(":")[1]: mount for mount in [*base, *override]}).values())
    return override


def _read(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    file: dict[str, Any] = _resolved(yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader), environment)
    return file


def environment_of(service: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The variables of a service as they are written."""
    return list(service.get("environment", {}).items())
