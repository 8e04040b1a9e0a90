"""The gateway's metrics are documented."""

from gateway_service.observability.metrics import Metrics
from tests.harness.deploy.metrics_document import documented


def test_every_metric_is_documented() -> None:
    lines = Metrics().exposition().decode().splitlines()
    told = {line.split(" ", 3)[2]: line.split(" ", 3)[3] for line in lines if line.startswith("# HELP draftwire:")}
    kinds = {line.split(" ")[2]: line.split(" ")[3] for line in lines if line.startswith("# TYPE draftwire:")}
    told = {name: text for name, text in told.items() if not name.endswith("_created")}
    rows = documented("Gateway")
    assert [(row.name, row.kind, row.meaning) for row in rows] == [(n, kinds[n], t) for n, t in told.items()]
