"""TLS certificate files, signed by a certificate authority of the test's own."""

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme

from draftwire import Tls


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority that writes the certificates it signs into a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._ca = trustme.CA()
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, file: str, *names: str, expired: bool = False) -> Pair:
        """Writes FILE.pem and FILE.key. A second call replaces them, as a rotation does."""
        now = datetime.datetime.now(datetime.UTC)
        begin = now - datetime.timedelta(days=2)
        end = now - datetime.timedelta(days=1) if expired else now + datetime.timedelta(days=1)
        made = self._ca.issue_cert(*(names or ("localhost", "127.0.0.1")), not_before=begin, not_after=end)
        pair = Pair(self._directory / f"{file}.pem", self._directory / f"{file}.key")
        pair.cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(pair.key)
        return pair

    def tls(self, client: Pair | None = None, server_name: str | None = None) -> Tls:
        """Returns TLS settings that trust this authority, with or without a client certificate."""
        return Tls(self.file, client and client.cert, client and client.key, server_name)
