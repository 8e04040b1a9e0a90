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

import kubernetes_validate
import pytest
from kubernetes_validate import utils

from drafter_service.settings import DrafterSettings
from draftwire import Client
from draftwire_core.runtime.process.settings import variable_of
from tests.harness.deploy.compose_processes import running_services
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.helm import render
from tests.harness.deploy.manifests import Manifests, selects, variables
from tests.harness.deploy.variants import OF_OTHERS, SETTINGS, VARIANTS, VERSIONS, example, rendered
from tests.harness.waiting import PATIENCE, eventually, sometimes

ROOT = Path(__file__).resolve().parents[2]
PREFIXES = {"verifier": "DRAFTWIRE_", "drafter": "DRAFTWIRE_", "gateway": "DRAFTWIRE_GATEWAY_"}


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
            assert selects(workload["spec"]["selector"], release.labels(component))
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


@pytest.mark.slow
@pytest.mark.package_index
class TestVariants(Consistency):
    """Releases with various values, rendered by helm."""

    @pytest.fixture(params=VARIANTS)
    def release(self, request: pytest.FixtureRequest) -> Manifests:
        return Manifests(rendered(request.param))


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
