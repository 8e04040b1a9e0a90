"""The gateway's metrics are documented."""

from pathlib import Path

from draftwire_core.runtime.process.tls_settings import CertificateExpiry
from gateway_service.observability.metrics import Metrics
from gateway_service.settings import GatewaySettings
from tests.harness.certificates import Authority
from tests.harness.deploy.metrics_document import documented


def test_every_metric_is_documented() -> None:
    lines = Metrics(CertificateExpiry(GatewaySettings())).exposition().decode().splitlines()
    told = {line.split(" ", 3)[2]: line.split(" ", 3)[3] for line in lines if line.startswith("# HELP draftwire:")}
    kinds = {line.split(" ")[2]: line.split(" ")[3] for line in lines if line.startswith("# TYPE draftwire:")}
    told = {name: text for name, text in told.items() if not name.endswith("_created")}
    rows = [*documented("Gateway"), *documented("Certificates")]
    assert [(row.name, row.kind, row.meaning) for row in rows] == [(n, kinds[n], t) for n, t in told.items()]


def test_the_expiry_of_certificates_is_a_metric(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("gateway")
    settings = GatewaySettings(tls_cert=str(pair.cert), tls_key=str(pair.key))
    certificates = CertificateExpiry(settings)
    [line] = [
        line
        for line in Metrics(certificates).exposition().decode().splitlines()
        if line.startswith("draftwire:certificate_expiry_timestamp_seconds{")
    ]
    name, value = line.split(" ")
    assert name == 'draftwire:certificate_expiry_timestamp_seconds{setting="tls_cert"}'
    assert float(value) == certificates.seconds()["tls_cert"]
