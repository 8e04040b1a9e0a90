"""values.yaml of the chart, its schema, the examples, and the README that explains them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.harness.checkout import ROOT
from tests.harness.deploy.helm import CHART
from tests.harness.deploy.variants import COMPONENTS, EXAMPLES, SETTINGS, VERSIONS
from verifier_service.reading.local_address import read_local_address

OF_THE_CHART = {
    *("listen", "metrics_listen", "insecure", "tls_cert", "tls_key", "tls_ca", "tls_server_name"),
    *("token_file", "accepted_tokens", "shutdown_grace_seconds", "device", "tensor_parallel", "model"),
    *("drafter", "verifier", "name", "advertise", "api_key", "api_key_file", "keys", "models"),
    "preflight",
}
"""Settings that follow from other values, so that `settings` does not have them, and one that a service never has."""
WHOLE = ("settings", "resources", "annotations", "labels", "nodeSelector", "affinity")
"""Values that are mappings of the user's."""
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


@pytest.mark.parametrize("example", [None, *EXAMPLES])
def test_values_are_valid(example: str | None) -> None:
    values = merged(VALUES, yaml.safe_load(EXAMPLES[example].read_text())) if example else VALUES
    jsonschema_rs.validate(SCHEMA, values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"verifer": {}},
        {"verifier": {"settings": {"kv_slots": 1}}},
        {"verifier": {"settings": {"model": "m"}}},
        {"drafter": {"placement": "beside"}},
        {"models": {"source": "claim"}},
        {"models": {"image": {"copy": False}}},
        {"gateway": {"ingress": {"enabled": True}}},
        {"gateway": {"httpRoute": {"enabled": True}}},
        {"tls": {"secrets": {"verifier": ""}}},
    ],
    ids=str,
)
def test_a_mistake_is_refused(wrong: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(SCHEMA, merged(VALUES, wrong))


@pytest.mark.parametrize("component", COMPONENTS)
def test_settings_are_those_of_the_service_that_no_other_value_sets(component: str) -> None:
    known = SCHEMA["properties"][component]["properties"]["settings"]["propertyNames"]["enum"]
    fields = set(SETTINGS[component].model_fields) - OF_THE_CHART
    fields |= {"tls_server_name"} & set(SETTINGS[component].model_fields) if component == "gateway" else set()
    assert known == sorted(field.replace("_", "-") for field in fields)


def test_the_readme_has_each_value_with_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (?:(`[^`]*`|set) )?\|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert dict(rows) == {name: written(value) for name, value in leaves(VALUES)}
    assert len(rows) == len(dict(rows))


def test_the_schema_has_each_value() -> None:
    for name, _ in leaves(VALUES):
        node = SCHEMA
        for part in name.split("."):
            node = SCHEMA["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
            node = node["properties"][part]


def test_templates_read_each_value_and_no_other() -> None:
    text = "".join(each.read_text() for each in (CHART / "templates").iterdir())
    names = [name for name, _ in leaves(VALUES)]
    assert [name for name in names if not re.search(rf"\.{name.rpartition('.')[2]}\b", text)] == []
    read = set(re.findall(r"\.Values\.([\w.]+)", text))
    assert {each for each in read if not any(f"{name}.".startswith(f"{each}.") for name in names)} == set()


def test_the_version_is_that_of_the_images() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = re.findall(r"^ARG DRAFTWIRE_VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert chart["appVersion"] in (version, version.removesuffix(".dev0"))  # the latter in a release's commit
    assert chart["version"] == re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"-\1\2", chart["appVersion"])  # SemVer
    assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"


def test_the_draft_model_of_the_gpu_example_is_in_the_verifier() -> None:
    values = yaml.safe_load(EXAMPLES["gpu"].read_text())
    (drafter,) = values["verifier"]["drafters"]
    assert read_local_address("drafter", drafter) == drafter
    assert values["drafter"] == {"placement": "none"} and values["verifier"]["gpus"] == 1


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values over other ones, as helm merges them."""
    together = base | over
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            together[name] = merged(base[name], over[name])
    return together


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and name not in WHOLE:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def written(value: Any) -> str:
    """A default as the README has it."""
    if isinstance(value, dict) and value:
        return "set"
    return f"`{json.dumps(value)}`" if value not in ("", None, {}, []) else ""
