"""The chart in deploy/helm, and what is rendered from it: valid, and consistent with images and services' settings.

The default tier reads what is rendered from the chart's defaults, the slow tier renders all variants with helm.
"""

import copy
import functools
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from drafter_service.settings import DrafterSettings
from draftwire import Client
from draftwire._calls.endpoints import NAMES_SECONDS
from draftwire._calls.names import LONGEST_LOOKUP_SECONDS
from draftwire_core.runtime.process.settings import load_settings, variable_of
from gateway_service.settings import GatewaySettings
from scripts.release.release import Release, chart
from tests.harness.client_packages import node_packages
from tests.harness.deploy.compose_processes import running_services
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.helm import CHART, read_objects, render, run_helm
from tests.harness.deploy.manifests import Manifests, selects, variables
from tests.harness.deploy.rendered import RENDERED
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually, sometimes
from verifier_service.reading.local_address import read_local_address
from verifier_service.settings import VerifierSettings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {each.stem: each for each in (CHART / "examples").glob("*.yaml")}
VERSIONS = ("1.30", "1.34", "1.37")
"""Kubernetes versions: the oldest supported one, one between, and the newest one with schemas here."""
COMPONENTS = ("verifier", "drafter", "gateway")
SETTINGS: dict[str, Any] = {"verifier": VerifierSettings, "drafter": DrafterSettings, "gateway": GatewaySettings}
PREFIXES = {"verifier": "DRAFTWIRE_", "drafter": "DRAFTWIRE_", "gateway": "DRAFTWIRE_GATEWAY_"}
OF_THE_CHART = {
    *("listen", "metrics_listen", "insecure", "tls_cert", "tls_key", "tls_ca", "tls_server_name"),
    *("token_file", "accepted_tokens", "shutdown_grace_seconds", "device", "tensor_parallel", "model"),
    *("drafter", "verifier", "name", "advertise", "api_key", "api_key_file", "keys", "models"),
    "preflight",
}
"""Settings that follow from other values, so that `settings` does not have them, and one that a service never has."""
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
    "alone": (
        *("--set", "gateway.enabled=false,drafter.placement=none,networkPolicy.enabled=false"),
        *("--set", "podDisruptionBudget.enabled=false,serviceAccount.name=mine"),
    ),
}


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Kubernetes' schemas are large, and are otherwise read for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "tls"
    subprocess.run([ROOT / "deploy/tls/make.sh", place], check=True, timeout=PATIENCE)
    return place


class Consistency:
    """What holds for every release."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_each_object_is_valid(self, release: Manifests, version: str) -> None:
        own = [each for each in release.objects if each["apiVersion"] not in OF_OTHERS]
        assert own
        for each in own:
            kubernetes_validate.validate(each, version, strict=True)

    def test_names_are_the_releases_and_unique(self, release: Manifests) -> None:
        names = [(each["kind"], each["metadata"]["name"]) for each in release.objects]
        assert len(set(names)) == len(names)
        assert {each["metadata"]["namespace"] for each in release.objects} == {"draftwire"}
        assert all(re.fullmatch(r"draftwire(-verifier|-drafter|-gateway)?", name) for _, name in names)

    def test_a_pod_can_do_no_more_than_it_must(self, release: Manifests) -> None:
        """Everything that Pod Security's level `restricted` asks for, and a read-only root file system."""
        for component in release.workloads:
            pod = release.pod(component)
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

    def test_what_is_mounted_is_there_and_nothing_else(self, release: Manifests) -> None:
        for component, workload in release.workloads.items():
            pod = release.pod(component)
            there = [each["name"] for each in pod["volumes"]]
            there += [each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())]
            containers = (*pod["containers"], *pod.get("initContainers", ()))
            mounted = {mount["name"] for each in containers for mount in each["volumeMounts"]}
            assert sorted(there) == sorted(mounted)
            for each in pod["containers"]:
                paths = [mount["mountPath"] for mount in each["volumeMounts"]]
                assert "/tmp" in paths and len(paths) == len(set(paths))
                environment = Dockerfile(ROOT / "Dockerfile").image(each["name"]).environment
                if each["name"] != "gateway":
                    assert environment["HF_HOME"] in paths
                    on_gpu = "nvidia.com/gpu" in each["resources"]["limits"]
                    assert (environment["TRITON_CACHE_DIR"] in paths) == on_gpu

    def test_a_service_is_given_settings_that_it_has(self, release: Manifests) -> None:
        for name, container in release.containers.items():
            known = {variable_of(SETTINGS[name], field) for field in SETTINGS[name].model_fields}
            known |= {"POD_IP", "POD_NAME", "HF_TOKEN", "HF_HUB_OFFLINE", "DRAFTWIRE_API_KEYS"}
            names = [each["name"] for each in container["env"]]
            assert set(names) <= known and len(names) == len(set(names))
            for number, value in enumerate(variables(container).values()):  # may refer to earlier ones
                assert set(re.findall(r"\$\((\w+)\)", value)) <= set(names[:number])

    def test_the_end_of_a_pod_waits_for_the_service(self, release: Manifests) -> None:
        for component in release.workloads:
            pod = release.pod(component)
            for container in pod["containers"]:
                grace = float(variables(container)[f"{PREFIXES[container['name']]}SHUTDOWN_GRACE_SECONDS"])
                pause = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [0])[-1]
                assert float(pause) + grace < pod["terminationGracePeriodSeconds"]

    def test_ports_are_the_images(self, release: Manifests) -> None:
        for name, container in release.containers.items():
            exposed = {int(port) for port in Dockerfile(ROOT / "Dockerfile").image(name).values("EXPOSE")[0].split()}
            assert {port["containerPort"] for port in container["ports"]} == exposed
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "grpc" in container.get(probe, {}):
                    assert container[probe]["grpc"]["port"] == container["ports"][0]["containerPort"]
            told = variables(container)
            for variable in ("DRAFTWIRE_LISTEN", "DRAFTWIRE_METRICS_LISTEN", "DRAFTWIRE_ADVERTISE"):
                assert variable not in told or int(told[variable].rpartition(":")[2]) in exposed

    def test_services_select_their_pods_and_have_their_ports(self, release: Manifests) -> None:
        services = release.of_kind("Service")
        assert services.keys() == release.workloads.keys()
        for component, service in services.items():
            assert selects({"matchLabels": service["spec"]["selector"]}, release.labels(component))
            ports = [port for each in release.pod(component)["containers"] for port in each["ports"]]
            names = [port["name"] for port in ports]
            assert len(names) == len(set(names))
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(names)
            workload = release.workloads[component]
            assert workload["spec"]["selector"]["matchLabels"] == release.labels(component)
            if workload["kind"] == "StatefulSet":
                assert workload["spec"]["serviceName"] == service["metadata"]["name"]
                assert service["spec"]["clusterIP"] == "None"  # so that the name resolves to all pods

    def test_calls_arrive(self, release: Manifests) -> None:
        host = "draftwire-verifier.draftwire.svc"
        verifiers = release.workloads["verifier"]["spec"].get("replicas", 4)
        if "gateway" in release.workloads:
            gateway = variables(release.containers["gateway"])
            assert "DRAFTWIRE_GATEWAY_MODELS" in gateway or gateway["DRAFTWIRE_GATEWAY_VERIFIER"] == f"{host}:50051"
            assert release.reaches("gateway", "verifier", 50051)
        if "drafter" in release.workloads:
            announced = DrafterSettings(
                model="m",
                verifier=variables(release.containers["drafter"])["DRAFTWIRE_ANNOUNCE_TO"],
                advertise="h:1",
                listen="0.0.0.0:1",
                insecure=True,
            )
            pods = [f"draftwire-verifier-{number}.{host}:50051" for number in range(verifiers)]
            assert list(announced.verifier) == pods
            assert release.reaches("drafter", "verifier", 50051)
            assert release.reaches("verifier", "drafter", 50052)
            assert not release.reaches("gateway", "drafter", 50052)
            assert not release.reaches("drafter", "drafter", 50052)
        elif "drafter" in release.containers:
            drafters = variables(release.containers["verifier"])["DRAFTWIRE_DRAFTER"].split(",")
            assert drafters[-1] == variables(release.containers["drafter"])["DRAFTWIRE_LISTEN"] == "127.0.0.1:50052"

    def test_images_are_of_the_dockerfile_and_of_one_version(self, release: Manifests) -> None:
        """A tag may be on a node already, so it must not be one that moves."""
        tags = set()
        for component in release.workloads:
            pod = release.pod(component)
            for each in (*pod["containers"], *pod.get("initContainers", ())):
                assert each["imagePullPolicy"] == "IfNotPresent"
                name, _, tag = each["image"].rpartition("/")[2].partition(":")
                assert name.removeprefix("draftwire-") in Dockerfile(ROOT / "Dockerfile").stages
                assert name == f"draftwire-{each['name']}"
                version, _, kind = tag.partition("-")
                on_gpu = "nvidia.com/gpu" in each["resources"]["limits"]
                assert kind == ({True: "cuda", False: "cpu"}[on_gpu] if each["name"] in ("verifier", "drafter") else "")
                tags.add(version)
        assert len(tags) == 1

    def test_budgets_and_scaling_are_for_what_is_there(self, release: Manifests) -> None:
        for component, budget in release.of_kind("PodDisruptionBudget").items():
            assert selects(budget["spec"]["selector"], release.labels(component))
        scalers = release.of_kind("HorizontalPodAutoscaler", "ScaledObject")
        for component, scaler in scalers.items():
            target = scaler["spec"]["scaleTargetRef"]
            assert target["name"] == release.workloads[component]["metadata"]["name"]
            assert target["kind"] == release.workloads[component]["kind"]
        for component, workload in release.workloads.items():
            assert ("replicas" in workload["spec"]) == (component not in scalers)  # the scaler sets them


class TestRendered(Consistency):
    """deploy/kubernetes/draftwire.yaml."""

    @pytest.fixture
    def release(self) -> Manifests:
        return Manifests(example())

    def test_a_mistake_is_found(self, release: Manifests) -> None:
        wrong = copy.deepcopy(release.workloads["verifier"])
        wrong["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
        with pytest.raises(kubernetes_validate.ValidationError, match="livenessprobe"):
            kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)

    def test_the_bundled_models_are_copied_to_where_they_are_looked_for(self, release: Manifests) -> None:
        image = Dockerfile(ROOT / "Dockerfile").image("models")
        assert image.entrypoint == ["/bin/cp", "-R", "/bundled/.", "/models/"]
        copied = dict(value.split() for value in image.values("COPY") if not value.startswith("--from="))
        for name in ("verifier", "drafter"):
            model = variables(release.containers[name])["DRAFTWIRE_MODEL"]
            assert model.replace("/models/", "/bundled/") in copied.values()
            (init,) = release.pod(name)["initContainers"]
            assert [mount["mountPath"] for mount in init["volumeMounts"]] == ["/models"]
        assert all((ROOT / source / "config.json").exists() for source in copied)


class TestValues:
    """values.yaml, its schema, the examples, and the README that explains them."""

    VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
    SCHEMA = json.loads((CHART / "values.schema.json").read_text())

    @pytest.mark.parametrize("example", [None, *EXAMPLES])
    def test_values_are_valid(self, example: str | None) -> None:
        values = merged(self.VALUES, yaml.safe_load(EXAMPLES[example].read_text())) if example else self.VALUES
        jsonschema_rs.validate(self.SCHEMA, values)

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
    def test_a_mistake_is_refused(self, wrong: dict[str, Any]) -> None:
        assert not jsonschema_rs.is_valid(self.SCHEMA, merged(self.VALUES, wrong))

    @pytest.mark.parametrize("component", COMPONENTS)
    def test_settings_are_those_of_the_service_that_no_other_value_sets(self, component: str) -> None:
        known = self.SCHEMA["properties"][component]["properties"]["settings"]["propertyNames"]["enum"]
        fields = set(SETTINGS[component].model_fields) - OF_THE_CHART
        fields |= {"tls_server_name"} & set(SETTINGS[component].model_fields) if component == "gateway" else set()
        assert known == sorted(field.replace("_", "-") for field in fields)

    def test_the_readme_has_each_value_with_its_default(self) -> None:
        rows = re.findall(r"^\| `([\w.]+)` \| (?:(`[^`]*`|set) )?\|", (CHART / "README.md").read_text(), re.MULTILINE)
        assert dict(rows) == {name: written(value) for name, value in leaves(self.VALUES)}
        assert len(rows) == len(dict(rows))

    def test_the_schema_has_each_value(self) -> None:
        for name, _ in leaves(self.VALUES):
            node = self.SCHEMA
            for part in name.split("."):
                node = self.SCHEMA["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
                node = node["properties"][part]

    def test_the_version_is_that_of_the_images(self) -> None:
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        (version,) = re.findall(r"^ARG DRAFTWIRE_VERSION=(.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        assert chart["appVersion"] in (version, version.removesuffix(".dev0"))  # the latter in a release's commit
        assert chart["version"] == re.sub(r"\.?(dev|a|b|rc)(\d+)$", r"-\1\2", chart["appVersion"])  # SemVer
        assert chart["kubeVersion"] == f">={VERSIONS[0]}.0-0"

    def test_the_draft_model_of_the_gpu_example_is_in_the_verifier(self) -> None:
        values = yaml.safe_load(EXAMPLES["gpu"].read_text())
        (drafter,) = values["verifier"]["drafters"]
        assert read_local_address("drafter", drafter) == drafter
        assert values["drafter"] == {"placement": "none"} and values["verifier"]["gpus"] == 1


@pytest.mark.slow
@pytest.mark.package_index
class TestVariants(Consistency):
    """Releases with various values, rendered by helm."""

    @pytest.fixture(params=VARIANTS)
    def release(self, request: pytest.FixtureRequest) -> Manifests:
        return Manifests(rendered(request.param))


@pytest.mark.slow
@pytest.mark.package_index
class TestHelm:
    """What helm itself makes of the chart."""

    def test_the_chart_has_no_fault(self) -> None:
        for arguments in VARIANTS.values():
            done = run_helm("lint", "--strict", str(CHART), *arguments)
            assert done.returncode == 0, done.stdout + done.stderr

    def test_the_chart_of_a_release_is_the_chart(self, tmp_path: Path) -> None:
        packed = tmp_path / chart(Release("0.1.0", ROOT, ROOT, tmp_path))
        done = run_helm("template", "draftwire", str(packed), "--namespace", "draftwire")
        assert done.returncode == 0, done.stderr
        assert read_objects(done.stdout) == render("draftwire")

    def test_the_rendered_example_is_up_to_date(self) -> None:
        """If it is not: python -m tests.harness.deploy.rendered."""
        assert rendered("defaults") == example()

    def test_a_wrong_value_is_refused_with_its_name(self) -> None:
        done = run_helm("template", str(CHART), "--set", "verifier.settings.kv-slot=1")
        assert done.returncode != 0 and "kv-slot" in done.stderr

    def test_the_notes_say_how_to_call_it(self) -> None:
        command = ("install", "mine", str(CHART), "--namespace", "ai", "--dry-run=client")
        notes = run_helm(*command).stdout.partition("NOTES:")[2]
        assert "kubectl --namespace ai port-forward service/mine-draftwire-gateway 8000:80" in notes
        assert "No key is required" in notes
        exposed = (*VARIANTS["exposed"], "--set", "gateway.apiKeysSecret=keys")
        notes = run_helm(*command, *exposed).stdout.partition("NOTES:")[2]
        assert "http://a.example.com/v1" in notes and "No key is required" not in notes

    def test_two_releases_share_a_namespace(self) -> None:
        """No name is used twice, and no policy, budget or service selects another release's pods."""
        one, other = (Manifests(render(name, "--set", "serviceMonitor.enabled=true")) for name in ("draftwire", "b"))
        names = [{(each["kind"], each["metadata"]["name"]) for each in release.objects} for release in (one, other)]
        assert names[0].isdisjoint(names[1])
        for kind in ("NetworkPolicy", "PodDisruptionBudget", "ServiceMonitor", "Service"):
            for component, each in one.of_kind(kind).items():
                spec = each["spec"]
                selector = spec.get("podSelector") or spec["selector"]
                selector = selector if "matchLabels" in selector else {"matchLabels": selector}
                assert not selects(selector, other.labels(component))

    def test_large_numbers_lists_and_switches_are_written_as_services_read_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = {
            "kv-slots": 16777216,
            "plain-share": 0.5,
            "prefix-cache": False,
            "announced-host": ["10.0.0.0/8", "*.svc"],
            "kernels": "avx2",
        }
        release = Manifests(render("draftwire", "--set-json", f"verifier.settings={json.dumps(settings)}"))
        told = variables(release.containers["verifier"])
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        read = load_settings(VerifierSettings, [])
        assert (read.kv_slots, read.plain_share, read.prefix_cache, read.kernels) == (16777216, 0.5, False, "avx2")
        assert len(read.announced_host) == 2

    def test_long_names_fit(self) -> None:
        """Kubernetes adds eleven characters to a stateful set's name for a label, of 63 at most."""
        for each in render("a" * 53):
            assert len(each["metadata"]["name"]) <= 52

    def test_a_model_image_is_mounted_by_newer_versions(self) -> None:
        image = "registry.example.com/models:1"
        release = Manifests(render("draftwire", "--set", f"models.image.copy=false,models.image.reference={image}"))
        for component in ("verifier", "drafter"):
            (volume,) = [each for each in release.pod(component)["volumes"] if each["name"] == "models"]
            assert volume["image"]["reference"] == image and "initContainers" not in release.pod(component)
            kubernetes_validate.validate(release.workloads[component], VERSIONS[-1], strict=True)

    def test_models_come_from_where_the_values_say(self) -> None:
        for variant, source in (("defaults", "emptyDir"), ("exposed", "persistentVolumeClaim")):
            for component in ("verifier", "drafter"):
                pod = Manifests(rendered(variant)).pod(component)
                (volume,) = [each for each in pod["volumes"] if each["name"] == "models"]
                assert source in volume
                assert variables(pod["containers"][0])["HF_HUB_OFFLINE"] == "1"
        secret = ("--set", "models.hub.tokenSecret=huggingface")
        release = Manifests(render("draftwire", *VARIANTS["gpu"], *secret))
        (claim,) = release.workloads["verifier"]["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "50Gi"
        told = {each["name"]: each.get("valueFrom") for each in release.containers["verifier"]["env"]}
        assert told["HF_TOKEN"] == {"secretKeyRef": {"name": "huggingface", "key": "token"}}
        assert "HF_HUB_OFFLINE" not in told

    def test_only_pods_whose_models_come_from_the_hub_may_call_it(self) -> None:
        for variant, allowed in (("defaults", False), ("gpu", True)):
            policy = Manifests(rendered(variant)).of_kind("NetworkPolicy")["verifier"]["spec"]
            ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
            assert (443 in ports) == allowed

    def test_gpus(self) -> None:
        release = Manifests(rendered("gpus"))
        verifier, drafter = variables(release.containers["verifier"]), variables(release.containers["drafter"])
        assert (verifier["DRAFTWIRE_DEVICE"], verifier["DRAFTWIRE_TENSOR_PARALLEL"]) == ("cuda", "4")
        assert drafter["DRAFTWIRE_DEVICE"] == "cuda" and "DRAFTWIRE_TENSOR_PARALLEL" not in drafter
        assert release.containers["verifier"]["resources"]["limits"]["nvidia.com/gpu"] == 4
        assert [each["key"] for each in release.pod("verifier")["tolerations"]] == ["spot", "nvidia.com/gpu"]
        shared = {mount["mountPath"] for mount in release.containers["verifier"]["volumeMounts"]}
        assert "/dev/shm" in shared  # ranks of one model exchange tensors there

    def test_models_take_the_place_of_the_verifier(self) -> None:
        gateway = Manifests(rendered("models")).containers["gateway"]
        set_to = variables(gateway)
        assert "DRAFTWIRE_GATEWAY_VERIFIER" not in set_to
        folder = str(Path(set_to["DRAFTWIRE_GATEWAY_MODELS"]).parent)
        assert {"name": "serving", "mountPath": folder, "readOnly": True} in gateway["volumeMounts"]

    def test_named_keys_are_mounted_as_a_folder(self) -> None:
        """A single file of a secret would not change with the secret."""
        gateway = Manifests(rendered("secured")).containers["gateway"]
        file = Path(variables(gateway)["DRAFTWIRE_GATEWAY_KEYS"])
        assert {"name": "keys", "mountPath": str(file.parent), "readOnly": True} in gateway["volumeMounts"]

    def test_further_calls_may_be_allowed(self) -> None:
        for policy in Manifests(rendered("gpus")).of_kind("NetworkPolicy").values():
            assert policy["spec"]["egress"][-1] == {"ports": [{"protocol": "TCP", "port": 4317}]}

    def test_one_gpu_runs_the_target_and_its_draft_model(self) -> None:
        release = Manifests(rendered("gpu"))
        told = variables(release.containers["verifier"])
        assert told["DRAFTWIRE_DRAFTER"] == "local:draft?model=Qwen/Qwen3-0.6B&kv_slots=32768"
        assert (told["DRAFTWIRE_KV_SLOTS"], told["DRAFTWIRE_GPU_MEMORY_UTILIZATION"]) == ("0", "0.7")
        assert release.containers["verifier"]["resources"]["limits"]["nvidia.com/gpu"] == 1
        (cache,) = [
            each for each in release.containers["verifier"]["volumeMounts"] if each["mountPath"] == "/var/cache/triton"
        ]
        assert cache == {"name": "huggingface", "mountPath": "/var/cache/triton", "subPath": "triton"}
        assert set(release.containers) == {"verifier", "gateway"}

    def test_a_rollout_of_several_verifiers_leaves_clients_time_to_find_the_new_one(self) -> None:
        for variant in ("secured", "exposed"):
            release = Manifests(rendered(variant))
            spec = release.workloads["verifier"]["spec"]
            assert spec.get("updateStrategy", {"type": "RollingUpdate"}) == {"type": "RollingUpdate"}
            assert spec["minReadySeconds"] > NAMES_SECONDS + LONGEST_LOOKUP_SECONDS
            affinity = release.pod("verifier")["affinity"]["podAntiAffinity"]
            (rule,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
            assert selects(rule["podAffinityTerm"]["labelSelector"], release.labels("verifier"))
        assert "minReadySeconds" not in Manifests(rendered("defaults")).workloads["verifier"]["spec"]

    def test_a_drafter_keeps_its_models_when_its_pod_is_replaced(self) -> None:
        """With a volume that lives only as long as the pod, each rollout would fetch the model again."""
        release = Manifests(render("draftwire", "--set", "models.source=hub"))
        for component in ("verifier", "drafter"):
            (claim,) = release.workloads[component]["spec"]["volumeClaimTemplates"]
            mounts = {each["name"]: each["mountPath"] for each in release.containers[component]["volumeMounts"]}
            environment = Dockerfile(ROOT / "Dockerfile").image(component).environment
            assert mounts[claim["metadata"]["name"]] == environment["HF_HOME"]
        retention = release.workloads["drafter"]["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert retention == {"whenScaled": "Delete", "whenDeleted": "Delete"}

    def test_prometheus_finds_all_pods_by_the_names_of_their_jobs(self) -> None:
        alerts = (ROOT / "deploy/prometheus/rules/alerts.yml").read_text()
        assert set(re.findall(r'job="(\w+)"', alerts)) <= set(COMPONENTS)
        for variant in ("secured", "secured-sidecar", "exposed"):
            release = Manifests(rendered(variant))
            jobs = set()
            for component, monitor in release.of_kind("ServiceMonitor").items():
                service = release.of_kind("Service")[component]
                assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
                ports = {port["name"] for port in service["spec"]["ports"]}
                job = service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
                for endpoint in monitor["spec"]["endpoints"]:
                    assert endpoint["port"] in ports
                    relabelled = [each["replacement"] for each in endpoint.get("relabelings", ())]
                    jobs |= {*relabelled} or {job}
            assert jobs == set(COMPONENTS)

    def test_scaling_asks_for_metrics_that_verifiers_have(self) -> None:
        metrics = (ROOT / "docs/monitoring.md").read_text()
        release = Manifests(rendered("exposed"))
        for component in ("verifier", "drafter"):
            (trigger,) = release.of_kind("ScaledObject")[component]["spec"]["triggers"]
            for name, labels in re.findall(r"(draftwire:\w+)\{(.*?)\}", trigger["metadata"]["query"]):
                assert f"| `{name}` | gauge |" in metrics
                assert labels == 'namespace="draftwire",service="draftwire-verifier"'

    def test_a_route_and_an_ingress_lead_to_the_gateway(self) -> None:
        release = Manifests(rendered("exposed"))
        (port,) = release.of_kind("Service")["gateway"]["spec"]["ports"]
        (rule,) = release.of_kind("Ingress")["gateway"]["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        assert path["backend"] == {"service": {"name": "draftwire-gateway", "port": {"number": port["port"]}}}
        (rule,) = release.of_kind("HTTPRoute")["gateway"]["spec"]["rules"]
        assert rule["backendRefs"] == [{"name": "draftwire-gateway", "port": port["port"]}]

    def test_objects_of_other_projects_have_the_fields_of_their_types(self, tmp_path: Path) -> None:
        """The compiler of TypeScript refuses a field that a type does not have, and one that is missing."""
        packages = node_packages(
            "kubernetes-types",
            "typescript@5.9.3",
            "@kubernetes-models/gateway-api@2.0.0",
            "@kubernetes-models/keda@2.0.0",
            "@kubernetes-models/prometheus-operator@6.0.0",
        )
        modules = {
            "HTTPRoute": "gateway-api/gateway.networking.k8s.io/v1",
            "ScaledObject": "keda/keda.sh/v1alpha1",
            "ServiceMonitor": "prometheus-operator/monitoring.coreos.com/v1",
        }
        objects = [each for variant in VARIANTS for each in rendered(variant) if each["apiVersion"] in OF_OTHERS]
        assert {each["kind"] for each in objects} == modules.keys()
        wrong = copy.deepcopy(next(each for each in objects if each["kind"] == "ScaledObject"))
        wrong["spec"]["minReplicas"] = 1
        (tmp_path / "node_modules").symlink_to(packages / "node_modules")
        for name, checked in (("right", objects), ("wrong", [wrong])):
            lines = [f'import type {{I{kind}}} from "@kubernetes-models/{path}";' for kind, path in modules.items()]
            for number, each in enumerate(checked):
                lines.append(f"export const o{number}: I{each['kind']} = {json.dumps(each)};")
            (tmp_path / f"{name}.ts").write_text("\n".join(lines))
        compiler = packages / "node_modules/.bin/tsc"
        options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]
        for name, status in (("right", 0), ("wrong", 2)):
            done = subprocess.run(
                [compiler, *options, f"{name}.ts"],
                cwd=tmp_path, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False,
            )  # fmt: skip
            assert done.returncode == status, done.stdout
        assert "minReplicas" in done.stdout


@pytest.mark.slow
@pytest.mark.package_index
class TestSecured:
    """TLS and tokens, with the files of deploy/tls/make.sh."""

    @pytest.mark.parametrize("variant", ["secured", "secured-sidecar"])
    def test_a_container_has_the_files_that_it_is_told_of(self, variant: str, made: Path) -> None:
        release = Manifests(rendered(variant))
        for component in release.workloads:
            pod = release.pod(component)
            secrets = {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
            for container in pod["containers"]:
                told = variables(container)
                mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
                files = [Path(value) for value in told.values() if value.startswith(("/tls/", "/tokens/"))]
                assert len(files) == {"gateway": 4}.get(container["name"], 5)
                for file in files:
                    mount = mounts[str(file.parent)]
                    secret = secrets[mount["name"]]
                    assert mount["readOnly"] is True and secret == f"{container['name']}-{file.parent.name}"
                    assert (made / secret / file.name).exists()
                assert f"{PREFIXES[container['name']]}INSECURE" not in told

    @pytest.mark.parametrize("variant", ["secured", "secured-sidecar"])
    def test_certificates_are_for_the_names_that_are_called(self, variant: str, made: Path) -> None:
        release = Manifests(rendered(variant))
        told = {name: variables(container) for name, container in release.containers.items()}
        called = {"drafter": [told["verifier"]["DRAFTWIRE_TLS_SERVER_NAME"]]}
        called["verifier"] = [told["gateway"]["DRAFTWIRE_GATEWAY_VERIFIER"].partition(":")[0]]
        for address in filter(None, told["drafter"].get("DRAFTWIRE_ANNOUNCE_TO", "").split(",")):
            called["verifier"].append(address.partition(":")[0])
        for name in ("verifier", "drafter"):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if probe in release.containers[name]:
                    program, *_, host = release.containers[name][probe]["exec"]["command"]
                    assert program == "draftwire"
                    called[name].append(host)
        endpoints = release.of_kind("ServiceMonitor")["gateway"]["spec"]["endpoints"]
        called["gateway"] = [each["tlsConfig"]["serverName"] for each in endpoints]
        for name, host in [(name, host) for name, hosts in called.items() for host in hosts]:
            command = ["openssl", "x509", "-noout", "-checkhost", host, "-in", str(made / f"{name}-tls/tls.crt")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
            assert "does match" in done.stdout, (name, host)

    def test_the_gateway_serves_https(self) -> None:
        release = Manifests(rendered("secured"))
        ports = release.of_kind("Service")["gateway"]["spec"]["ports"]
        assert [(port["name"], port["port"], port["appProtocol"]) for port in ports] == [("https", 443, "https")]
        assert release.containers["gateway"]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


@pytest.mark.slow
@pytest.mark.package_index
@pytest.mark.processes
class TestProcesses:
    """The containers of a release as processes of this machine, with the bundled models."""

    @pytest.mark.parametrize("placement", ["separate", "sidecar"])
    def test_they_work_together(self, placement: str, tmp_path: Path) -> None:
        release = Manifests(render("draftwire", "--set", f"drafter.placement={placement}"))
        services = {
            name: {
                "build": {"target": name},
                "environment": {variable: local(value) for variable, value in variables(container).items() if value},
                "volumes": ["./models:/models:ro"],
            }
            for name, container in release.containers.items()
        }
        with running_services(services, tmp_path) as running, Client(running["verifier"].address) as client:
            eventually(lambda: [each.state for each in client.drafters.list()] == ["ready"], "the drafter is ready")
            url = f"http://{running['gateway'].address}/v1/completions"
            asked = {"prompt": "def fib(n):", "max_tokens": 24, "temperature": 0, "speculation": {"planning": "always"}}
            request = urllib.request.Request(url, json.dumps(asked).encode(), {"content-type": "application/json"})

            def drafted() -> int:
                with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                    return int(json.load(response)["speculation"]["draft_tokens"])

            sometimes(drafted, "drafts come in time")


def local(value: str) -> str:
    """A variable's value with services instead of pods."""
    value = re.sub(r"draftwire-verifier[\w.-]*:50051", "verifier:50051", value)
    return re.sub(r"^(\$\(POD_IP\)|127\.0\.0\.1):50052$", "drafter:50052", value).replace("$(POD_NAME)", "drafter")


@functools.cache
def example() -> list[dict[str, Any]]:
    return read_objects(RENDERED.read_text())


@functools.cache
def rendered(variant: str) -> list[dict[str, Any]]:
    return render("draftwire", *VARIANTS[variant])


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values over other ones, as helm merges them."""
    together = base | over
    for name in base.keys() & over.keys():
        if isinstance(base[name], dict) and isinstance(over[name], dict):
            together[name] = merged(base[name], over[name])
    return together


WHOLE = ("settings", "resources", "annotations", "labels", "nodeSelector", "affinity")
"""Values that are mappings of the user's."""


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
