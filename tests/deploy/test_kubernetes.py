"""The manifests in deploy/kubernetes: valid, and consistent with each other, the images and the services' settings."""

import copy
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from drafter_service.settings import DrafterSettings
from draftwire._calls.endpoints import NAMES_SECONDS
from draftwire._calls.names import LONGEST_LOOKUP_SECONDS
from draftwire_core.runtime.process.settings import variable_of
from gateway_service.settings import GatewaySettings
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.kustomization import build, identity, merged, read_objects
from tests.harness.suite.skipped import needs
from tests.harness.waiting import LONG_PATIENCE
from verifier_service.reading.local_address import read_local_address
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
"""Kubernetes versions: the oldest supported one, and the newest one with schemas here."""
COMPONENTS = ("verifier", "drafter", "gateway")
SETTINGS: dict[str, tuple[str, Any]] = {
    "verifier": ("DRAFTWIRE_", VerifierSettings),
    "drafter": ("DRAFTWIRE_", DrafterSettings),
    "gateway": ("DRAFTWIRE_GATEWAY_", GatewaySettings),
}

overlays = pytest.mark.parametrize("overlay", ["cpu", "gpu", "cpu-tls", "gpu-tls", "cpu-ha", "gpu-ha"])


@functools.cache
def built(overlay: str) -> list[dict[str, Any]]:
    return build(PLACE / overlay)


def workload(overlay: str, component: str) -> dict[str, Any]:
    kinds = ("StatefulSet", "Deployment")
    (found,) = [each for each in built(overlay) if each["kind"] in kinds and each["metadata"]["name"] == component]
    return found


def container(overlay: str, component: str) -> dict[str, Any]:
    found: dict[str, Any] = workload(overlay, component)["spec"]["template"]["spec"]["containers"][0]
    return found


def labels(each: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = each["spec"]["template"]["metadata"]["labels"]
    return found


def selected(selector: dict[str, Any], pod: dict[str, str]) -> bool:
    """Whether a selector matches a pod with these labels."""
    names = selector.get("matchLabels", {}).items() <= pod.items()
    return names and all(
        pod.get(each["key"]) in each["values"]
        for each in selector.get("matchExpressions", ())
        if each["operator"] == "In"
    )


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Kubernetes' schemas are large, and are otherwise read for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


@overlays
@pytest.mark.parametrize("version", VERSIONS)
def test_each_object_is_valid(overlay: str, version: str) -> None:
    for each in built(overlay):
        kubernetes_validate.validate(each, version, strict=True)


def test_a_mistake_is_found() -> None:
    wrong = copy.deepcopy(workload("cpu", "verifier"))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessprobe"):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_a_patch_changes_what_it_names() -> None:
    base = {
        "containers": [{"name": "a", "env": [{"name": "X", "value": "1"}], "args": [1, 2]}],
        "kept": {"b": 1, "c": 2},
    }
    patch = {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}], "args": [3]}], "kept": {"b": None}}
    assert merged({"ports": [{"port": 80}]}, {"ports": [{"port": 80, "$patch": "delete"}, {"port": 443}]}) == {
        "ports": [{"port": 443}]
    }
    assert merged(base, patch) == {
        "containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}], "args": [3]}],
        "kept": {"c": 2},
    }


def in_order(node: Any) -> Any:
    """Sorts an object's lists: the order of variables, mounts and volumes is kustomize's own."""
    if isinstance(node, list):
        return sorted(map(in_order, node), key=str)
    if isinstance(node, dict):
        return {name: in_order(node[name]) for name in sorted(node)}
    return node


@pytest.mark.processes
@needs("kubectl")
class TestKubectl:
    @overlays
    def test_kubectl_builds_the_same(self, overlay: str) -> None:
        command = ["kubectl", "kustomize", str(PLACE / overlay)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=LONG_PATIENCE, check=True).stdout
        theirs = {identity(each): each for each in yaml.load_all(told, yaml.CSafeLoader)}
        assert theirs.keys() == {identity(each) for each in built(overlay)}
        for each in built(overlay):
            assert in_order(theirs[identity(each)]) == in_order(each)


@overlays
def test_all_is_in_one_namespace(overlay: str) -> None:
    for kind, namespace, name in map(identity, built(overlay)):
        assert namespace == ("" if kind == "Namespace" else "draftwire"), name


@overlays
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_pod_can_do_no_more_than_it_must(overlay: str, component: str) -> None:
    """Everything that the namespace's label (restricted) enforces, and a read-only root file system."""
    spec = workload(overlay, component)["spec"]
    pod = spec["template"]["spec"]
    volumes = {each["name"] for each in pod["volumes"]}
    volumes |= {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", ())}
    user = Dockerfile(ROOT / "Dockerfile").image(component).values("USER")[-1]
    assert user == f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for each in (*pod["containers"], *pod.get("initContainers", ())):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in each["resources"]["limits"]
        mounted = {mount["name"] for mount in each.get("volumeMounts", ())}
        claims = {
            claim["metadata"]["name"] for claim in workload(overlay, component)["spec"].get("volumeClaimTemplates", ())
        }
        assert mounted <= {volume["name"] for volume in pod.get("volumes", ())} | claims
    assert "/tmp" in {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}


@overlays
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_pod_is_told_what_there_is_to_tell(overlay: str, component: str) -> None:
    _, settings = SETTINGS[component]
    known = {variable_of(settings, name) for name in settings.model_fields}
    known |= {"POD_IP", "POD_NAME", "DRAFT_MODEL", "HF_TOKEN", "DRAFTWIRE_API_KEYS"}
    environment = container(overlay, component)["env"]
    assert {each["name"] for each in environment} <= known
    told = {each["name"]: each.get("value", "") for each in environment}
    before = [name for name, value in told.items() if re.search(r"\$\((\w+)\)", value)]
    for name in before:  # a variable may refer to earlier ones
        needed = re.findall(r"\$\((\w+)\)", told[name])
        assert all(list(told).index(each) < list(told).index(name) for each in needed)
    models = {identity(each): each for each in built(overlay)}[("ConfigMap", "draftwire", "models")]
    for each in environment:
        reference = each.get("valueFrom", {}).get("configMapKeyRef")
        assert reference is None or (reference["name"] == "models" and reference["key"] in models["data"])


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_end_of_a_pod_waits_for_the_service(component: str) -> None:
    prefix, _ = SETTINGS[component]
    told = {each["name"]: each.get("value", "") for each in container("cpu", component)["env"]}
    pause = container("cpu", component).get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1]
    grace = float(told[f"{prefix}SHUTDOWN_GRACE_SECONDS"])
    assert (
        float(pause) + grace < workload("cpu", component)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    )


@pytest.mark.parametrize("component", COMPONENTS)
def test_ports_are_the_images(component: str) -> None:
    found = container("cpu", component)
    exposed = {int(port) for port in Dockerfile(ROOT / "Dockerfile").image(component).values("EXPOSE")[0].split()}
    assert {port["containerPort"] for port in found["ports"]} == exposed
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if component != "gateway":
            assert found[probe]["grpc"]["port"] == found["ports"][0]["containerPort"]
    told = {each["name"]: each.get("value", "") for each in found["env"]}
    for name in ("DRAFTWIRE_METRICS_LISTEN", "DRAFTWIRE_ADVERTISE"):
        if name in told:
            assert int(told[name].rpartition(":")[2]) in exposed


@overlays
def test_addresses_are_services_and_reachable(overlay: str) -> None:
    objects = built(overlay)
    pods = {name: labels(workload(overlay, name)) for name in COMPONENTS}
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    ports = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "Service"}

    def opens(rule: dict[str, Any], peer: str, other: str, port: int) -> bool:
        """Whether a rule admits a pod as the other end; one that names no pods admits all."""
        ends = [end["podSelector"] for end in rule.get(peer, ()) if "podSelector" in end]
        named = peer not in rule or any(selected(end, pods[other]) for end in ends)
        return named and any(each["port"] == port for each in rule["ports"])

    def allowed(way: str, peer: str, owner: str, other: str, port: int) -> bool:
        rules = [
            rule for policy in policies if selected(policy["podSelector"], pods[owner]) for rule in policy.get(way, ())
        ]
        return any(opens(rule, peer, other, port) for rule in rules)

    def reaches(caller: str, called: str, port: int) -> bool:
        return allowed("egress", "to", caller, called, port) and allowed("ingress", "from", called, caller, port)

    for caller, name in (("gateway", "DRAFTWIRE_GATEWAY_VERIFIER"), ("drafter", "DRAFTWIRE_ANNOUNCE_TO")):
        told = {each["name"]: each.get("value", "") for each in container(overlay, caller)["env"]}[name]
        for address in told.split(","):
            host, _, port = address.rpartition(":")
            *_, service, namespace, kind = host.split(".")
            assert (service, namespace, kind) == ("verifier", "draftwire", "svc")
            assert int(port) in [each["port"] for each in ports[service]["ports"]]
            assert reaches(caller, "verifier", int(port))
    assert reaches("verifier", "drafter", 50052)
    assert not reaches("gateway", "drafter", 50052)
    assert not reaches("drafter", "drafter", 50052)
    for service, spec in ports.items():
        assert selected({"matchLabels": spec["selector"]}, pods[service])
        named = {port["name"] for port in container(overlay, service)["ports"]}
        assert {port["targetPort"] for port in spec["ports"]} <= named


@overlays
def test_a_drafter_is_known_to_each_verifier_and_a_gateway_finds_all(overlay: str) -> None:
    replicas = workload(overlay, "verifier")["spec"]["replicas"]
    assert replicas == (2 if overlay.endswith("-ha") else 1)
    pods = {f"verifier-{number}.verifier.draftwire.svc:50051" for number in range(replicas)}
    told = {each["name"]: each.get("value", "") for each in container(overlay, "drafter")["env"]}
    settings = DrafterSettings(
        model="m", verifier=told["DRAFTWIRE_ANNOUNCE_TO"], advertise="h:1", listen="0.0.0.0:1", insecure=True
    )
    assert set(settings.verifier) == pods
    told = {each["name"]: each.get("value", "") for each in container(overlay, "gateway")["env"]}
    assert told["DRAFTWIRE_GATEWAY_VERIFIER"] == "verifier.draftwire.svc:50051"
    (service,) = [each["spec"] for each in built(overlay) if identity(each) == ("Service", "draftwire", "verifier")]
    assert service["clusterIP"] == "None"  # headless, so that the name resolves to all pods


@pytest.mark.parametrize("overlay", ["cpu-ha", "gpu-ha"])
def test_a_rollout_of_two_verifiers_leaves_clients_time_to_find_the_new_one(overlay: str) -> None:
    spec = workload(overlay, "verifier")["spec"]
    assert spec.get("updateStrategy", {"type": "RollingUpdate"}) == {"type": "RollingUpdate"}
    assert spec["minReadySeconds"] > NAMES_SECONDS + LONGEST_LOOKUP_SECONDS
    (rule,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert selected(rule["podAffinityTerm"]["labelSelector"], labels(workload(overlay, "verifier")))


def test_an_overlay_may_have_two_verifiers_and_tls(tmp_path: Path) -> None:
    parts = {"resources": [str(PLACE / "cpu")], "components": [str(PLACE / "tls"), str(PLACE / "ha")]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    sets = {each["metadata"]["name"]: each["spec"] for each in build(tmp_path) if each["kind"] == "StatefulSet"}
    assert sets["verifier"]["replicas"] == 2
    (drafter,) = sets["drafter"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in drafter["env"]}
    assert told["DRAFTWIRE_TLS_CERT"] == "/tls/tls.crt"
    # Names in the verifiers' certificates: docs/deploying.md has *.verifier.draftwire.svc.
    hosts = [address.rpartition(":")[0] for address in told["DRAFTWIRE_ANNOUNCE_TO"].split(",")]
    assert hosts == ["verifier-0.verifier.draftwire.svc", "verifier-1.verifier.draftwire.svc"]


@overlays
def test_a_drafter_keeps_its_models_when_its_pod_is_replaced(overlay: str) -> None:
    """With a volume that lives only as long as the pod, each rollout would fetch the model again."""
    for component in ("verifier", "drafter"):
        spec = workload(overlay, component)["spec"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container(overlay, component)["volumeMounts"]}
        claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        assert mounts[Dockerfile(ROOT / "Dockerfile").image(component).environment["HF_HOME"]] in claims
        assert not any("ephemeral" in volume for volume in spec["template"]["spec"]["volumes"])
    spec = workload(overlay, "drafter")["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenScaled": "Delete", "whenDeleted": "Delete"}
    assert ("Service", "draftwire", spec["serviceName"]) in map(identity, built(overlay))


@overlays
def test_images_are_versions_that_a_node_may_already_have(overlay: str) -> None:
    """For images from `kind load docker-image`; a moving tag could be another build on each node."""
    for component in COMPONENTS:
        pod = workload(overlay, component)["spec"]["template"]["spec"]
        for each in (*pod["containers"], *pod.get("initContainers", ())):
            assert each["imagePullPolicy"] == "IfNotPresent"
            assert re.fullmatch(r"[0-9][0-9.a-z]*(-cpu|-cuda)?", each["image"].partition(":")[2]), each["image"]


@overlays
def test_budgets_and_scaling_are_for_what_is_there(overlay: str) -> None:
    objects = built(overlay)
    budgets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "PodDisruptionBudget"}
    assert set(budgets) == set(COMPONENTS)
    for component, budget in budgets.items():
        assert selected(budget["selector"], labels(workload(overlay, component)))
        assert workload(overlay, component)["spec"]["selector"]["matchLabels"] == labels(workload(overlay, component))
    (scaler,) = [each["spec"] for each in objects if each["kind"] == "HorizontalPodAutoscaler"]
    target = workload(overlay, scaler["scaleTargetRef"]["name"])
    assert target["kind"] == scaler["scaleTargetRef"]["kind"]
    assert "replicas" not in target["spec"]  # the autoscaler sets them
    assert "cpu" in container(overlay, "gateway")["resources"]["requests"]


@overlays
def test_images_are_targets_of_the_dockerfile(overlay: str) -> None:
    stages = Dockerfile(ROOT / "Dockerfile").stages
    for component in COMPONENTS:
        pod = workload(overlay, component)["spec"]["template"]["spec"]
        for each in (*pod["containers"], *pod.get("initContainers", ())):
            name, _, tag = each["image"].partition(":")
            assert name.removeprefix("draftwire-") in stages and tag, each["image"]


def test_the_bundled_models_are_copied_to_where_they_are_looked_for() -> None:
    models = {identity(each): each for each in built("cpu")}[("ConfigMap", "draftwire", "models")]["data"]
    image = Dockerfile(ROOT / "Dockerfile").image("models")
    assert image.entrypoint == ["/bin/cp", "-R", "/bundled/.", "/models/"]
    copied = dict(value.split() for value in image.values("COPY") if not value.startswith("--from="))
    assert {path.replace("/models/", "/bundled/") for path in models.values()} <= set(copied.values())
    assert all((ROOT / source / "config.json").exists() for source in copied)


def test_gpus() -> None:
    for component in ("verifier", "drafter"):
        assert container("gpu", component)["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"name": "DRAFTWIRE_DEVICE", "value": "cuda"} in container("gpu", component)["env"]
        cache = Dockerfile(ROOT / "Dockerfile").image(component).environment["TRITON_CACHE_DIR"]
        mounted = {each["mountPath"]: each["name"] for each in container("gpu", component)["volumeMounts"]}
        assert mounted[cache] == "triton" and {"/tmp", "/var/cache/huggingface"} < set(mounted)


@pytest.mark.parametrize("overlay", ["gpu", "gpu-ha", "gpu-tls"])
def test_a_verifier_and_its_draft_model_share_one_gpu(overlay: str) -> None:
    assert workload(overlay, "drafter")["spec"]["replicas"] == 0
    environment = container(overlay, "verifier")["env"]
    env = {each["name"]: each.get("value") for each in environment}
    (model,) = (each["valueFrom"]["configMapKeyRef"] for each in environment if each["name"] == "DRAFT_MODEL")
    (models,) = (each for each in built(overlay) if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "models"))
    drafter = str(env["DRAFTWIRE_DRAFTER"]).replace("$(DRAFT_MODEL)", models["data"][model["key"]])
    assert read_local_address("drafter", drafter) == f"local:draft?model={models['data']['draft']}"
    assert (env["DRAFTWIRE_KV_SLOTS"], env["DRAFTWIRE_GPU_MEMORY_UTILIZATION"]) == ("0", "0.8")


def test_prometheus_finds_all_pods() -> None:
    monitors = read_objects(PLACE / "monitoring" / "pod-monitors.yaml")
    for component in COMPONENTS:
        ports = {port["name"] for port in container("cpu", component)["ports"]}
        endpoints = [
            endpoint["port"]
            for monitor in monitors
            if selected(monitor["spec"]["selector"], labels(workload("cpu", component)))
            for endpoint in monitor["spec"]["podMetricsEndpoints"]
        ]
        assert len(endpoints) == 1 and set(endpoints) <= ports
        assert monitors[0]["spec"]["jobLabel"] in labels(workload("cpu", component))
