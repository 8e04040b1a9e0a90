"""Reads docker-compose.yml as Compose does: resolves variables and selects the services of a profile."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_VARIABLE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:?[-?])(?P<otherwise>[^{}]*))?\}|(?P<wrong>))"
)


class Override(dict[str, Any]):
    """A mapping that takes the place of the one that it would be merged with."""


_RESET = object()
"""Stands for the removal of what it would be merged with."""


class _Loader(yaml.CSafeLoader):  # type: ignore[misc]
    """Knows the tags of Compose."""


_Loader.add_constructor("!override", lambda loader, node: Override(loader.construct_mapping(node, deep=True)))
_Loader.add_constructor("!reset", lambda loader, node: _RESET)


def variables(text: str) -> set[str]:
    """Returns the names of the variables that a text refers to."""
    return {found["plain"] or found["name"] for found in _VARIABLE.finditer(text)} - {None}


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """Substitutes variables by the rules of the Compose specification, except nested ones.

    Raises:
        ValueError: a variable has neither a value nor a default, or a dollar sign does not start a variable.
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
        return type(node)({key: _resolved(item, environment) for key, item in node.items()})
    return node


def read_compose(
    path: Path, environment: Mapping[str, str], profile: str | None = None, *, overrides: Sequence[Path] = ()
) -> dict[str, Any]:
    """Returns the resolved file, merged with `overrides`; a profile drops the services that it does not include.

    A service's variable without a value takes the value of the environment, and is dropped if that has none.
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
    """Merges two files as Compose does: mappings by key, volumes by mount point.

    Raises:
        ValueError: both files have some other list, whose merging is not implemented here.
    """
    if isinstance(override, Override):
        return dict(override)
    if isinstance(base, dict) and isinstance(override, dict):
        both = base | {name: merged(base.get(name), value, name) for name, value in override.items()}
        return {name: value for name, value in both.items() if value is not _RESET}
    if isinstance(base, list) and isinstance(override, list):
        if key != "volumes":
            raise ValueError(f"{key}: is not known here")
        return list(({mount.split(":")[1]: mount for mount in [*base, *override]}).values())
    return override


def _read(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    file: dict[str, Any] = _resolved(yaml.load(path.read_text(encoding="utf-8"), _Loader), environment)
    return file


def environment_of(service: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Returns a service's variables as written in the file."""
    return list(service.get("environment", {}).items())
