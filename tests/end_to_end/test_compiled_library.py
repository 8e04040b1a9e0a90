"""A service that runs without the compiled part of the engine reports it."""

from __future__ import annotations

import urllib.request

import pytest

from tests.harness.checkout import MODELS
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import STEADY_VERIFIER, Services
from tests.harness.waiting import eventually

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
from pathlib import Path
from draftwire_core.engine.kernels import library as compiled_library
if sys.argv.pop(1) == "absent":
    compiled_library.LIBRARY = Path("/nowhere") / compiled_library.LIBRARY.name
from {module} import main
sys.exit(main())
"""
WARNING = "compiled library not found; decoding is slower"


def metrics(service: ServiceProcess) -> str:
    """Returns the text of a scrape."""
    served = eventually(
        lambda: [event["address"] for event in service.events() if event["event"] == "metrics server started"],
        "metrics",
    )
    with urllib.request.urlopen(f"http://{served[0]}/metrics") as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize(
    ("module", "model", "ready"),
    [(STEADY_VERIFIER, "target", "model loaded"), ("drafter_service.process", "draft", "model loaded")],
)
def test_whether_the_library_is_in_use(module: str, model: str, ready: str, services: Services) -> None:
    flags = ("--model", str(MODELS / model), "--metrics-listen", "127.0.0.1:0", "--threads", "1")
    program = PROGRAM.format(module=module)
    started = {library: services.start(["-c", program, library], *flags) for library in ("there", "absent")}
    for library, service in started.items():
        assert service.address
        there = library == "there"
        warnings = [event for event in service.events() if event["event"] == WARNING]
        assert [event["level"] for event in warnings] == ([] if there else ["warning"])
        [told] = [event["compiled_library"] for event in service.events() if event["event"] == ready]
        assert told is there
        [(kernels, advice)] = [
            (event["kernels"], event["faster"]) for event in service.events() if event["event"] == ready
        ]
        assert (kernels != "torch", "a C compiler" not in advice) == (there, there)
        value = "true" if there else "false"
        assert f'draftwire:compiled_library_info{{loaded="{value}"}} 1.0' in metrics(service)
    assert "a C compiler" in warnings[0]["remedy"]
