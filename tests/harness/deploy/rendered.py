"""The chart with its defaults as manifests, for clusters without helm.

    python -m tests.harness.deploy.rendered

writes them again, after a change of the chart.
"""

from tests.harness.checkout import ROOT
from tests.harness.deploy.helm import CHART, run_helm

RENDERED = ROOT / "deploy" / "kubernetes" / "draftwire.yaml"
_HEADER = """\
# The chart with its defaults: the bundled models on CPUs, in any cluster. It is generated, for clusters without helm:
#
#   helm template draftwire deploy/helm/draftwire --namespace draftwire
#
# Images without a registry have to be on the nodes.
"""


def main() -> None:
    """Writes the manifests."""
    done = run_helm("template", "draftwire", str(CHART), "--namespace", "draftwire")
    done.check_returncode()
    RENDERED.write_text(_HEADER + done.stdout, encoding="utf-8")


if __name__ == "__main__":
    main()
