"""Objects of Kubernetes as a whole: who selects whom, and what a pod is given."""

from dataclasses import dataclass
from typing import Any

COMPONENT = "app.kubernetes.io/component"


@dataclass(frozen=True)
class Manifests:
    """The objects of one release."""

    objects: list[dict[str, Any]]

    def of_kind(self, *kinds: str) -> dict[str, dict[str, Any]]:
        """Returns the objects of some kinds by their component."""
        return {each["metadata"]["labels"].get(COMPONENT, ""): each for each in self.objects if each["kind"] in kinds}

    @property
    def workloads(self) -> dict[str, dict[str, Any]]:
        """Stateful sets and deployments by their component."""
        return self.of_kind("StatefulSet", "Deployment")

    def pod(self, component: str) -> dict[str, Any]:
        """Returns the specification of a component's pods."""
        found: dict[str, Any] = self.workloads[component]["spec"]["template"]["spec"]
        return found

    def labels(self, component: str) -> dict[str, str]:
        """Returns the labels of a component's pods."""
        found: dict[str, str] = self.workloads[component]["spec"]["template"]["metadata"]["labels"]
        return found

    @property
    def containers(self) -> dict[str, dict[str, Any]]:
        """The containers of all pods by their name, which is that of the service in them."""
        return {each["name"]: each for component in self.workloads for each in self.pod(component)["containers"]}

    def reaches(self, caller: str, called: str, port: int) -> bool:
        """Returns whether the network policies let a component's pods call a port of another's; all without any."""
        policies = [each["spec"] for each in self.of_kind("NetworkPolicy").values()]

        def admits(ends: list[dict[str, Any]], component: str) -> bool:
            pods = [end["podSelector"] for end in ends if "podSelector" in end]
            return any(selects(each, self.labels(component)) for each in pods)

        def allows(way: str, peer: str, owner: str, other: str) -> bool:
            own = [each for each in policies if selects(each["podSelector"], self.labels(owner))]
            rules = [rule for policy in own for rule in policy[way]]
            return not own or any(
                port in [each["port"] for each in rule["ports"]] and (peer not in rule or admits(rule[peer], other))
                for rule in rules
            )

        return allows("egress", "to", caller, called) and allows("ingress", "from", called, caller)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Returns whether a selector of labels matches."""
    matched: dict[str, str] = selector["matchLabels"]
    return matched.items() <= labels.items()


def variables(container: dict[str, Any]) -> dict[str, str]:
    """Returns a container's variables; those whose values come from elsewhere are empty."""
    return {each["name"]: each.get("value", "") for each in container["env"]}
