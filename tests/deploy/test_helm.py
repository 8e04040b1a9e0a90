"""The objects that helm itself makes of the chart in deploy/helm."""

import copy
import json
import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest

from draftwire._calls.endpoints import NAMES_SECONDS
from draftwire._calls.names import LONGEST_LOOKUP_SECONDS
from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.process.settings import load_settings
from scripts.release.release import Release, chart
from tests.harness.checkout import ROOT
from tests.harness.client_packages import node_packages
from tests.harness.deploy.dockerfile import Dockerfile
from tests.harness.deploy.helm import CHART, read_objects, render, run_helm
from tests.harness.deploy.manifests import Manifests, selects, variables
from tests.harness.deploy.variants import COMPONENTS, OF_OTHERS, SETTINGS, VARIANTS, VERSIONS, example, rendered
from tests.harness.waiting import LONG_PATIENCE
from verifier_service.settings import VerifierSettings

pytestmark = [pytest.mark.slow, pytest.mark.package_index]


def test_the_chart_has_no_fault() -> None:
    for arguments in VARIANTS.values():
        done = run_helm("lint", "--strict", str(CHART), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_of_a_release_is_the_chart(tmp_path: Path) -> None:
    packed = tmp_path / chart(Release("0.1.0", ROOT, ROOT, tmp_path))
    done = run_helm("template", "draftwire", str(packed), "--namespace", "draftwire")
    assert done.returncode == 0, done.stderr
    assert read_objects(done.stdout) == render("draftwire")


def test_the_rendered_example_is_up_to_date() -> None:
    """If it is not: python -m tests.harness.deploy.rendered."""
    assert rendered("defaults") == example()


def test_a_wrong_value_is_refused_with_its_name() -> None:
    done = run_helm("template", str(CHART), "--set", "verifier.settings.kv-slot=1")
    assert done.returncode != 0 and "kv-slot" in done.stderr


def test_the_notes_say_how_to_call_it() -> None:
    command = ("install", "mine", str(CHART), "--namespace", "ai", "--dry-run=client")
    notes = run_helm(*command).stdout.partition("NOTES:")[2]
    assert "kubectl --namespace ai port-forward service/mine-draftwire-gateway 8000:80" in notes
    assert "No key is required" in notes
    exposed = (*VARIANTS["exposed"], "--set", "gateway.apiKeysSecret=keys")
    notes = run_helm(*command, *exposed).stdout.partition("NOTES:")[2]
    assert "http://a.example.com/v1" in notes and "No key is required" not in notes


def test_two_releases_share_a_namespace() -> None:
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


def test_large_numbers_lists_and_switches_are_written_as_services_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_setting_of_null_is_left_to_the_service() -> None:
    settings = ("--set-json", 'verifier.settings={"threads": null, "kv-slots": null}', "--set-json")
    release = Manifests(render("draftwire", *settings, 'gateway.settings={"max-tokens": null}'))
    told = variables(release.containers["verifier"]) | variables(release.containers["gateway"])
    assert not {"DRAFTWIRE_THREADS", "DRAFTWIRE_KV_SLOTS", "DRAFTWIRE_GATEWAY_MAX_TOKENS"} & set(told)


def test_pods_with_addresses_of_ipv6_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Manifests(rendered("ipv6"))
    for name, settings in SETTINGS.items():
        with monkeypatch.context() as patch:
            for variable, value in variables(release.containers[name]).items():
                patch.setenv(variable, value.replace("$(POD_IP)", "fd00::7"))
            read = load_settings(settings, [])
        addresses = [getattr(read, field, None) for field in ("listen", "metrics_listen")]
        assert all(Address.parse(each).host == "::" for each in addresses if each is not None)
        assert Address.parse(getattr(read, "advertise", None) or "[fd00::7]:1").host == "fd00::7"
    beside = Manifests(render("draftwire", "--set", "ipv6=true,drafter.placement=sidecar")).containers["drafter"]
    assert variables(beside)["DRAFTWIRE_LISTEN"] == "127.0.0.1:50052"


@pytest.mark.parametrize(("gpus", "split"), [(0, ""), (1, ""), (4, "--tensor-parallel-size=4 ")])
def test_a_verifier_on_vllm_takes_its_settings(gpus: int, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"gpus": gpus, "settings": {"engine": "vllm", "engine-arguments": "--dtype float16", "threads": None}}
    release = Manifests(render("draftwire", "--set-json", f"verifier={json.dumps(values)}"))
    for name, value in variables(release.containers["verifier"]).items():
        monkeypatch.setenv(name, value)
    read = load_settings(VerifierSettings, [])
    assert (read.engine, read.engine_arguments) == ("vllm", f"{split}--dtype float16")
    assert ("nvidia.com/gpu" in release.containers["verifier"]["resources"]["limits"]) == (gpus > 0)


def test_long_names_fit() -> None:
    """Kubernetes adds eleven characters to a stateful set's name for a label, of 63 at most."""
    for each in render("a" * 53):
        assert len(each["metadata"]["name"]) <= 52


def test_a_model_image_is_mounted_by_newer_versions() -> None:
    image = "registry.example.com/models:1"
    release = Manifests(render("draftwire", "--set", f"models.image.copy=false,models.image.reference={image}"))
    for component in ("verifier", "drafter"):
        (volume,) = [each for each in release.pod(component)["volumes"] if each["name"] == "models"]
        assert volume["image"]["reference"] == image and "initContainers" not in release.pod(component)
        kubernetes_validate.validate(release.workloads[component], VERSIONS[-1], strict=True)


def test_models_come_from_where_the_values_say() -> None:
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


def test_only_pods_whose_models_come_from_the_hub_may_call_it() -> None:
    for variant, allowed in (("defaults", False), ("gpu", True)):
        policy = Manifests(rendered(variant)).of_kind("NetworkPolicy")["verifier"]["spec"]
        ports = [port["port"] for rule in policy["egress"] for port in rule["ports"]]
        assert (443 in ports) == allowed


def test_gpus() -> None:
    release = Manifests(rendered("gpus"))
    verifier, drafter = variables(release.containers["verifier"]), variables(release.containers["drafter"])
    assert (verifier["DRAFTWIRE_DEVICE"], verifier["DRAFTWIRE_TENSOR_PARALLEL"]) == ("cuda", "4")
    assert drafter["DRAFTWIRE_DEVICE"] == "cuda" and "DRAFTWIRE_TENSOR_PARALLEL" not in drafter
    assert release.containers["verifier"]["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert [each["key"] for each in release.pod("verifier")["tolerations"]] == ["spot", "nvidia.com/gpu"]
    shared = {mount["mountPath"] for mount in release.containers["verifier"]["volumeMounts"]}
    assert "/dev/shm" in shared  # ranks of one model exchange tensors there


def test_models_take_the_place_of_the_verifier() -> None:
    gateway = Manifests(rendered("models")).containers["gateway"]
    set_to = variables(gateway)
    assert "DRAFTWIRE_GATEWAY_VERIFIER" not in set_to
    folder = str(Path(set_to["DRAFTWIRE_GATEWAY_MODELS"]).parent)
    assert {"name": "serving", "mountPath": folder, "readOnly": True} in gateway["volumeMounts"]


def test_a_gateway_of_several_models_may_call_the_verifiers_of_other_releases() -> None:
    own, other = Manifests(rendered("models")), Manifests(render("other"))
    ways = (
        ("to", own.of_kind("NetworkPolicy")["gateway"]["spec"]["egress"], other.labels("verifier")),
        ("from", other.of_kind("NetworkPolicy")["verifier"]["spec"]["ingress"], own.labels("gateway")),
    )
    for end, rules, labels in ways:
        called = [rule for rule in rules if {"protocol": "TCP", "port": 50051} in rule["ports"]]
        peers = [peer["podSelector"] for rule in called for peer in rule[end] if "podSelector" in peer]
        assert any(selects(each, labels) for each in peers), end


def test_named_keys_are_mounted_as_a_folder() -> None:
    """A single file of a secret would not change with the secret."""
    gateway = Manifests(rendered("secured")).containers["gateway"]
    file = Path(variables(gateway)["DRAFTWIRE_GATEWAY_KEYS"])
    assert {"name": "keys", "mountPath": str(file.parent), "readOnly": True} in gateway["volumeMounts"]


def test_further_calls_may_be_allowed() -> None:
    for policy in Manifests(rendered("gpus")).of_kind("NetworkPolicy").values():
        assert policy["spec"]["egress"][-1] == {"ports": [{"protocol": "TCP", "port": 4317}]}


def test_one_gpu_runs_the_target_and_its_draft_model() -> None:
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


def test_a_rollout_of_several_verifiers_leaves_clients_time_to_find_the_new_one() -> None:
    for variant in ("secured", "exposed"):
        release = Manifests(rendered(variant))
        spec = release.workloads["verifier"]["spec"]
        assert spec.get("updateStrategy", {"type": "RollingUpdate"}) == {"type": "RollingUpdate"}
        assert spec["minReadySeconds"] > NAMES_SECONDS + LONGEST_LOOKUP_SECONDS
        affinity = release.pod("verifier")["affinity"]["podAntiAffinity"]
        (rule,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert selects(rule["podAffinityTerm"]["labelSelector"], release.labels("verifier"))
    assert "minReadySeconds" not in Manifests(rendered("defaults")).workloads["verifier"]["spec"]


def test_a_drafter_keeps_its_models_when_its_pod_is_replaced() -> None:
    """With a volume that lives only as long as the pod, each rollout would fetch the model again."""
    release = Manifests(render("draftwire", "--set", "models.source=hub"))
    for component in ("verifier", "drafter"):
        (claim,) = release.workloads[component]["spec"]["volumeClaimTemplates"]
        mounts = {each["name"]: each["mountPath"] for each in release.containers[component]["volumeMounts"]}
        environment = Dockerfile(ROOT / "Dockerfile").image(component).environment
        assert mounts[claim["metadata"]["name"]] == environment["HF_HOME"]
    retention = release.workloads["drafter"]["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenScaled": "Delete", "whenDeleted": "Delete"}


def test_prometheus_finds_all_pods_by_the_names_of_their_jobs() -> None:
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


def test_scaling_asks_for_metrics_that_verifiers_have() -> None:
    metrics = (ROOT / "docs/monitoring.md").read_text()
    release = Manifests(rendered("exposed"))
    for component in ("verifier", "drafter"):
        (trigger,) = release.of_kind("ScaledObject")[component]["spec"]["triggers"]
        for name, labels in re.findall(r"(draftwire:\w+)\{(.*?)\}", trigger["metadata"]["query"]):
            assert f"| `{name}` | gauge |" in metrics
            assert labels == 'namespace="draftwire",service="draftwire-verifier"'


def test_a_route_and_an_ingress_lead_to_the_gateway() -> None:
    release = Manifests(rendered("exposed"))
    (port,) = release.of_kind("Service")["gateway"]["spec"]["ports"]
    (rule,) = release.of_kind("Ingress")["gateway"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert path["backend"] == {"service": {"name": "draftwire-gateway", "port": {"number": port["port"]}}}
    (rule,) = release.of_kind("HTTPRoute")["gateway"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "draftwire-gateway", "port": port["port"]}]


def test_objects_of_other_projects_have_the_fields_of_their_types(tmp_path: Path) -> None:
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
