"""Builds kustomizations like `kubectl apply -k`, as far as deploy/kubernetes needs it; anything else is refused."""

from pathlib import Path
from typing import Any

import yaml

_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "port"),  # ports of a container and of a service
    "volumeMounts": ("mountPath",),
}
"""Lists that a patch merges item by item, with the fields that identify an item; it replaces other lists as a whole."""


def read_objects(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file."""
    return [each for each in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader) if each is not None]


def build(directory: Path) -> list[dict[str, Any]]:
    """Returns the objects of a kustomization.

    Raises:
        ValueError: a field is not supported here, or a patch is for an object that does not exist.
    """
    told = _told(directory, "resources", "components", "patches", "images")
    objects = []
    for resource in told["resources"]:
        path = directory / resource
        objects += build(path) if path.is_dir() else read_objects(path)
    by_name = {identity(each): each for each in objects}
    if len(by_name) != len(objects):
        raise ValueError(f"{directory}: duplicate object")
    patching = [(directory / each, _told(directory / each, "patches")) for each in told.get("components", ())]
    for place, kustomization in (*patching, (directory, told)):
        for entry in kustomization.get("patches", ()):
            if set(entry) != {"path"}:
                raise ValueError(f"{place}: a patch is a path")
            for patch in read_objects(place / entry["path"]):
                if identity(patch) not in by_name:
                    raise ValueError(f"{place}: nothing is patched by {identity(patch)}")
                by_name[identity(patch)] = merged(by_name[identity(patch)], patch)
    images = {
        entry["name"]: f"{entry.get('newName', entry['name'])}:{entry['newTag']}" for entry in told.get("images", ())
    }
    return [_with_images(each, images) for each in by_name.values()]


def _told(directory: Path, *known: str) -> dict[str, Any]:
    """Returns a directory's kustomization. Raises ValueError for unsupported fields."""
    told: dict[str, Any]
    (told,) = read_objects(directory / "kustomization.yaml")
    if unknown := set(told) - {"apiVersion", "kind", *known}:
        raise ValueError(f"{directory}: {', '.join(sorted(unknown))}")
    return told


def identity(each: dict[str, Any]) -> tuple[str, str, str]:
    """Returns an object's kind, namespace and name."""
    return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]


def merged(base: Any, patch: Any, key: str = "") -> Any:
    """Applies a strategic merge: mappings by key, some lists by their items' keys; null and `$patch: delete` remove."""
    if isinstance(base, dict) and isinstance(patch, dict):
        together = {name: merged(base.get(name), value, name) for name, value in patch.items()}
        return {name: value for name, value in (base | together).items() if value is not None}
    if isinstance(base, list) and isinstance(patch, list) and key in _KEYS:
        items = {_name(key, each): each for each in base}
        for each in patch:
            name = _name(key, each)
            if each.get("$patch") == "delete":
                del items[name]
            else:
                items[name] = merged(items.get(name, {}), each)
        return list(items.values())
    return patch


def _name(key: str, item: dict[str, Any]) -> Any:
    """Returns the key that identifies an item of a list."""
    return next(item[name] for name in _KEYS[key] if name in item)


def _with_images(node: Any, images: dict[str, str]) -> Any:
    if isinstance(node, list):
        return [_with_images(each, images) for each in node]
    if isinstance(node, dict):
        return {
            name: images.get(value, value) if name == "image" else _with_images(value, images)
            for name, value in node.items()
        }
    return node
