"""The examples of deploy/router: they fit the chart, the images, the settings and the metrics.

`tests/gateway_service/test_routers.py` runs those for nginx, Envoy and LiteLLM.
"""

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from draftwire_core.runtime.process.settings import variable_of
from draftwire_core.runtime.process.tls_settings import CertificateExpiry
from gateway_service.observability.metrics import Metrics
from gateway_service.settings import GatewaySettings
from tests.harness.checkout import ROOT
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.helm import read_objects
from tests.harness.deploy.manifests import Manifests, selects
from tests.harness.deploy.rendered import RENDERED
from tests.harness.deploy.routers import ENVOY, EXAMPLES, LITELLM, NGINX
from verifier_service.settings import VerifierSettings


@pytest.fixture(scope="module")
def pool() -> dict[str, Any]:
    """The objects of the example for Kubernetes' inference gateways, by kind."""
    return {each["kind"]: each for each in read_objects((EXAMPLES / "inferencepool.yaml").read_text())}


def test_each_example_is_in_the_document() -> None:
    text = (ROOT / "docs" / "behind-your-router.md").read_text()
    linked = set(re.findall(r"\(\.\./deploy/router/([\w.]+)\)", text))
    assert linked == {each.name for each in EXAMPLES.iterdir()} > {NGINX, ENVOY, LITELLM}


def test_the_pool_selects_the_charts_gateways(pool: dict[str, Any]) -> None:
    release = Manifests(read_objects(RENDERED.read_text()))
    spec = pool["InferencePool"]["spec"]
    assert {name for name in release.workloads if selects(spec["selector"], release.labels(name))} == {"gateway"}
    ports = [each["containerPort"] for each in release.containers["gateway"]["ports"]]
    assert [each["number"] for each in spec["targetPorts"]] == ports
    (rule,) = pool["HTTPRoute"]["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"], backend["port"]) == (
        "InferencePool", pool["InferencePool"]["metadata"]["name"], ports[0]
    )  # fmt: skip
    kubernetes_validate.validate(pool["ConfigMap"], "1.37", strict=True)


def test_the_picker_reads_metrics_that_the_gateway_has(pool: dict[str, Any]) -> None:
    gauges = set(
        re.findall(
            r"^# TYPE (\S+) gauge$", Metrics(CertificateExpiry(GatewaySettings())).exposition().decode(), re.MULTILINE
        )
    )
    (text,) = pool["ConfigMap"]["data"].values()
    config = yaml.safe_load(text)
    plugins = {each["type"]: each.get("parameters", {}) for each in config["plugins"]}
    extractor = plugins["core-metrics-extractor"]
    (engine,) = extractor["engineConfigs"]
    assert engine.pop("name") == extractor["defaultEngine"]
    assert set(engine.values()) < gauges
    (profile,) = config["schedulingProfiles"]
    assert {each["pluginRef"] for each in profile["plugins"]} < plugins.keys()
    documented = (ROOT / "docs" / "behind-your-router.md").read_text()
    assert all(f"| `{name}` |" in documented for name in engine.values())


def test_a_pod_of_kserve_is_given_settings_that_its_services_have() -> None:
    (service,) = read_objects((EXAMPLES / "kserve.yaml").read_text())
    gateway, verifier = service["spec"]["predictor"]["containers"]
    dockerfile = Dockerfile(ROOT / "Dockerfile")
    settings: dict[str, Any] = {"gateway": GatewaySettings, "verifier": VerifierSettings}
    for name, container in (("gateway", gateway), ("verifier", verifier)):
        known = {variable_of(settings[name], field) for field in settings[name].model_fields}
        assert {each["name"] for each in container["env"]} <= known
        image, _, tag = container["image"].partition(":")
        assert image == f"draftwire-{name}" and tag.startswith("0.1.0")
    told = {each["name"]: each["value"] for each in (*gateway["env"], *verifier["env"])}
    assert told["DRAFTWIRE_GATEWAY_VERIFIER"] == told["DRAFTWIRE_LISTEN"]
    (port,) = gateway["ports"]
    exposed = dockerfile.image("gateway").values("EXPOSE")[0]
    assert str(port["containerPort"]) == exposed == str(gateway["readinessProbe"]["httpGet"]["port"])


@pytest.mark.parametrize("example", [NGINX, ENVOY, LITELLM, "inferencepool.yaml"])
def test_a_router_waits_longer_than_a_request_may_take(example: str) -> None:
    text = (EXAMPLES / example).read_text()
    waits = [float(each) for each in re.findall(r"(?:timeout:? |request: )(\d+)s?", text)]
    assert max(waits) > GatewaySettings().request_seconds
