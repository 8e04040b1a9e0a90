"""Variants of a release: values of the chart, and the objects that helm renders from them."""

import functools
from typing import Any

from drafter_service.settings import DrafterSettings
from gateway_service.settings import GatewaySettings
from tests.harness.deploy.helm import CHART, read_objects, render
from tests.harness.deploy.rendered import RENDERED
from verifier_service.settings import VerifierSettings

EXAMPLES = {each.stem: each for each in (CHART / "examples").glob("*.yaml")}
VERSIONS = ("1.30", "1.34", "1.37")
"""Kubernetes versions: the oldest supported one, one between, and the newest one with schemas here."""
SETTINGS: dict[str, Any] = {"verifier": VerifierSettings, "drafter": DrafterSettings, "gateway": GatewaySettings}
COMPONENTS = ("verifier", "drafter", "gateway")
OF_OTHERS = {"monitoring.coreos.com/v1", "keda.sh/v1alpha1", "gateway.networking.k8s.io/v1"}
"""API versions of kinds that are not Kubernetes' own."""
SECURED = ("--set", "tls.enabled=true,tokens.enabled=true")
VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "models": ("--set", "gateway.modelsConfigMap=models"),
    "gpu": ("--values", str(EXAMPLES["gpu"])),
    "cpu": ("--values", str(EXAMPLES["cpu"])),
    "secured": (*SECURED, "--set", "verifier.replicas=2,gateway.keysSecret=keys,serviceMonitor.enabled=true"),
    "secured-sidecar": (*SECURED, "--values", str(EXAMPLES["cpu"]), "--set", "serviceMonitor.enabled=true"),
    "exposed": (
        *("--set", "models.source=claim,models.claim=models,image.registry=registry.example.com/ai,image.tag=1.2.3"),
        *("--set", "gateway.ingress.enabled=true,gateway.ingress.hosts={a.example.com}"),
        *("--set", "gateway.httpRoute.enabled=true,gateway.httpRoute.parentRefs[0].name=gateway"),
        *("--set", "verifier.autoscaling.enabled=true,drafter.autoscaling.enabled=true"),
        *("--set", "serviceMonitor.enabled=true,serviceMonitor.apiKeySecret=prometheus"),
    ),
    "gpus": (
        *("--set", "verifier.gpus=4,drafter.gpus=1,verifier.drafters={local:ngram}"),
        *("--set-json", 'verifier.tolerations=[{"key": "spot", "operator": "Exists"}]'),
        *("--set-json", 'networkPolicy.egress=[{"ports": [{"protocol": "TCP", "port": 4317}]}]'),
    ),
    "ipv6": ("--set", "ipv6=true"),
    "alone": (
        *("--set", "gateway.enabled=false,drafter.placement=none,networkPolicy.enabled=false"),
        *("--set", "podDisruptionBudget.enabled=false,serviceAccount.name=mine"),
    ),
}


@functools.cache
def example() -> list[dict[str, Any]]:
    """Returns the objects of the rendered example, which is a file of the repository."""
    return read_objects(RENDERED.read_text())


@functools.cache
def rendered(variant: str) -> list[dict[str, Any]]:
    """Returns the objects of a variant, see `render`."""
    return render("draftwire", *VARIANTS[variant])
