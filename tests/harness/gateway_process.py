"""A gateway as a child process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.service_process import ServiceProcess


class GatewayProcess(ServiceProcess):
    """A gateway's process."""

    def __init__(self, logs: Path, *flags: str, **options: Any) -> None:
        """options: of ServiceProcess."""
        super().__init__(["-m", "gateway"], flags, logs, **options)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def socket_address(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)


StartGateway = Callable[..., GatewayProcess]
"""The type of `start_gateway("--verifier", address)`, which starts a gateway's process."""
