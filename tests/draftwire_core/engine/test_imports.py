"""What the engine and the services can be imported without: packages that others need."""

import pytest

from tests.harness.imports_without import problem_without

pytestmark = pytest.mark.slow

ENGINE = """
benchmarks.gpu.__main__ benchmarks.gpu.kernel_profile benchmarks.gpu.probe draftwire_core.engine.in_process
"""
SERVICES = "verifier_service.service verifier_service.target drafter_service.service"
OPTIONAL = "accelerate gguf psutil"
OF_SERVICES = """
google grpc grpc_health grpc_reflection grpc_status llguidance prometheus_client pydantic pydantic_settings structlog
uvloop
"""


@pytest.mark.parametrize(
    ("modules", "lacking"),
    [(ENGINE, OPTIONAL + OF_SERVICES), (SERVICES, OPTIONAL)],
    ids=["the engine, with torch and transformers alone", "the services, without optional packages"],
)
def test_on_a_gpu_few_packages_are_enough(modules: str, lacking: str) -> None:
    assert problem_without(lacking, modules) == ""
