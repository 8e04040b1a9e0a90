"""The times at which certificates expire, read from files that change."""

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.tls_settings import CertificateExpiry
from tests.harness.certificates import Authority


def ends(path: Path) -> list[float]:
    """The ends of a file's certificates, as another library reads them."""
    return [each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(path.read_bytes())]


def lasting(path: Path, until: datetime.datetime) -> Path:
    """Writes a certificate that is valid until a time."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(datetime.datetime(1950, 1, 1)).not_valid_after(until)
    path.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return path


def test_each_setting_with_certificates_has_a_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, own = authority.issue("service"), authority.issue("own")
    settings = ServiceSettings(
        tls_cert=str(pair.cert),
        tls_key=str(pair.key),
        tls_client_ca=str(authority.file),
        tls_ca=str(authority.file),
        tls_client_cert=str(own.cert),
        tls_client_key=str(own.key),
    )
    assert CertificateExpiry(settings).seconds() == {
        "tls_cert": min(ends(pair.cert)),
        "tls_client_ca": ends(authority.file)[0],
        "tls_ca": ends(authority.file)[0],
        "tls_client_cert": min(ends(own.cert)),
    }


def test_without_tls_there_are_none() -> None:
    assert CertificateExpiry(ServiceSettings()).seconds() == {}
    assert CertificateExpiry(ServiceSettings(tls_ca="public")).seconds() == {}


@pytest.mark.parametrize("year", [1950, 1999, 2049, 2050, 9999])
def test_years_are_whole(tmp_path: Path, year: int) -> None:
    path = lasting(tmp_path / "ca.pem", datetime.datetime(year, 12, 31, 23, 59, 59))
    found = CertificateExpiry(ServiceSettings(tls_ca=str(path))).seconds()["tls_ca"]
    assert [found] == ends(path)


def test_the_first_of_several_to_expire_counts(tmp_path: Path) -> None:
    late, early = (lasting(tmp_path / f"{year}.pem", datetime.datetime(year, 1, 1)) for year in (2040, 2035))
    both = tmp_path / "both.pem"
    both.write_bytes("Zertifikate für Prüfungen\n".encode() + late.read_bytes() + early.read_bytes())
    assert [CertificateExpiry(ServiceSettings(tls_ca=str(both))).seconds()["tls_ca"]] == ends(early)


def test_a_replaced_certificate_has_its_own_time(tmp_path: Path) -> None:
    path = lasting(tmp_path / "ca.pem", datetime.datetime(2035, 1, 1))
    expiry = CertificateExpiry(ServiceSettings(tls_ca=str(path)))
    before = expiry.seconds()
    lasting(tmp_path / "new.pem", datetime.datetime(2040, 1, 1)).replace(path)
    assert expiry.seconds() != before
    assert [expiry.seconds()["tls_ca"]] == ends(path)
    path.write_text("half written")
    assert [expiry.seconds()["tls_ca"]] == [datetime.datetime(2040, 1, 1, tzinfo=datetime.UTC).timestamp()]


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMAAwADAA\n-----END CERTIFICATE-----\n"])
def test_a_file_without_certificates_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(text)
    with pytest.raises(StartupError, match=f"--tls-ca: {path} contains no certificate"):
        CertificateExpiry(ServiceSettings(tls_ca=str(path)))
