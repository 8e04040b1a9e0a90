"""The import directions of CONTRIBUTING.md hold, and the check can fail."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from grimp.adaptors.packagefinder import ImportLibPackageFinder
from importlinter import configuration
from importlinter.application import use_cases

from tests.harness.waiting import LONG_PATIENCE

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "pyproject.toml"
LAYERS = "Imports run one way"
LAYERED = {
    contract["containers"][0]: contract
    for contract in tomllib.loads(CONFIG.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    if contract.get("containers")
}
"""The contract on the layers of each package, by package."""
NO_GRPC = "The engine knows neither gRPC nor the SDK"
NO_MODEL = "The SDK and the runtime know no model"
PROCESS = "The process code knows no gRPC"
GATEWAY = "The gateway knows the SDK and the process code alone"
TESTS_IMPORTS = re.compile(r"^\s*(?:from|import)\s+tests\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
SMALL_SDK = "The SDK needs grpcio, protobuf, typer and rich only"


class Lint:
    """Checks packages below a directory against the project's contracts, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, directory: Path) -> tuple[bool, str]:
        """Returns whether they pass, and the report."""

        def found(_: object, package_name: str, file_system: object) -> set[str]:
            return {str(directory / package_name)}  # not the package of this name that is imported here

        self._monkeypatch.setattr(ImportLibPackageFinder, "determine_package_directories", found)
        passed = use_cases.lint_imports(config_filename=str(CONFIG), cache_dir=None, no_logo=True)
        return passed, self._capsys.readouterr().out


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Lint:
    configuration.configure()
    return Lint(monkeypatch, capsys)


def write_packages(directory: Path) -> None:
    """Writes empty packages with the names of the project's."""
    for package in (
        "draftwire",
        "speculative_engine",
        "service_runtime",
        "drafter_pool",
        "drafter_service",
        "verifier_service",
        "engine_adapter",
        "draftwire_vllm",
        "draftwire_sglang",
        "draft_training",
        "edge_drafting",
        "gateway",
        "benchmarks",
    ):
        (directory / package).mkdir()
        (directory / package / "__init__.py").touch()
    for package, contract in LAYERED.items():
        for part in re.split(r" [|:] ", " | ".join(contract["layers"])):
            (directory / package / part).mkdir()
            (directory / package / part / "__init__.py").touch()
    (directory / "draftwire" / "edge" / "__init__.py").write_text("import edge_drafting\n")  # the one exemption


@pytest.mark.parametrize(
    ("package", "forbidden", "contract"),
    [
        ("draftwire/cli", "service_runtime", LAYERS),
        ("draftwire/cli", "verifier_service", LAYERS),
        ("service_runtime/rpc", "speculative_engine", LAYERS),
        ("speculative_engine/model", "service_runtime", LAYERS),
        ("speculative_engine/model", "drafter_service", LAYERS),
        ("drafter_service/service", "verifier_service", LAYERS),
        ("draft_training/refresh", "verifier_service", LAYERS),
        ("drafter_pool/drafter", "verifier_service", LAYERS),
        ("draftwire_vllm", "verifier_service", LAYERS),
        ("draftwire_sglang", "draftwire_vllm", LAYERS),
        ("engine_adapter", "draftwire_sglang", LAYERS),
        ("speculative_engine/model", "drafter_pool", LAYERS),
        ("speculative_engine/model", "draft_training", LAYERS),
        ("draftwire/cli", "draft_training", LAYERS),
        ("draftwire/cli", "gateway", LAYERS),
        ("gateway/http", "verifier_service", LAYERS),
        ("gateway/http", "service_runtime.rpc", GATEWAY),
        ("gateway/http", "service_runtime.security", GATEWAY),
        ("gateway/http", "service_runtime.errors", GATEWAY),
        ("gateway/http", "drafter_pool", GATEWAY),
        ("gateway/http", "speculative_engine", GATEWAY),
        ("gateway/http", "torch", GATEWAY),
        ("gateway/http", "grpc", GATEWAY),
        ("service_runtime/process", "grpc", PROCESS),
        ("service_runtime/process", "draftwire.v1", PROCESS),
        ("draftwire/_calls", "fastapi", SMALL_SDK),
        ("speculative_engine/model", "grpc", NO_GRPC),
        ("service_runtime/rpc", "torch", NO_MODEL),
        ("draftwire/_calls", "transformers", NO_MODEL),
        ("draftwire/_calls", "numpy", SMALL_SDK),
        ("draftwire/cli", "speculative_engine", LAYERS),
        ("draftwire/cli", "edge_drafting", LAYERS),
        ("draftwire/edge", "speculative_engine", LAYERS),
        ("edge_drafting", "verifier_service", LAYERS),
        ("gateway/http", "edge_drafting", LAYERS),
        ("draftwire/edge", "service_runtime", LAYERS),
        ("draftwire/edge", "torch", NO_MODEL),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, lint: Lint, package: str, forbidden: str, contract: str) -> None:
    write_packages(tmp_path)
    (tmp_path / package / "offender.py").write_text(f"def late():\n    import {forbidden}\n")
    passed, report = lint(tmp_path)
    assert not passed
    [broken] = [line for line in report.splitlines() if " BROKEN" in line]
    assert broken.startswith(contract)


@pytest.mark.parametrize(
    ("package", "room", "forbidden"),
    [
        ("speculative_engine", "drafters", "engine"),
        ("speculative_engine", "engine", "loading"),
        ("speculative_engine", "model", "drafters"),
        ("speculative_engine", "acceptance", "model"),
        ("speculative_engine", "kv", "model"),
        ("speculative_engine", "logits", "sampling"),
        ("speculative_engine", "tree", "planning"),
        ("service_runtime", "process", "rpc"),
        ("drafter_pool", "drafter", "routing"),
        ("verifier_service", "reading", "running"),
        ("drafter_service", "verifiers", "models"),
        ("gateway", "http", "settings"),
        ("gateway", "choices", "openai"),
        ("gateway", "openai", "routes"),
        ("gateway", "console", "routes"),
        ("gateway", "observability", "http"),
        ("draftwire", "_calls", "_sync"),
        ("draftwire", "_sync", "_async"),
        ("draftwire", "_messages", "_calls"),
        ("draftwire", "_types", "_messages"),
        ("draftwire", "_auth", "_messages"),
        ("draftwire", "errors", "_auth"),
        ("draftwire", "client", "cli"),
        ("draftwire", "version", "errors"),
        ("draftwire", "_async", "client"),
        ("draft_training", "distillation", "refresh"),
        ("draft_training", "data", "teachers"),
        ("draft_training", "medusa", "distillation"),
        ("draft_training", "refresh", "cli"),
    ],
)
def test_a_forbidden_import_inside_a_package_is_found(
    tmp_path: Path, lint: Lint, package: str, room: str, forbidden: str
) -> None:
    write_packages(tmp_path)
    (tmp_path / package / room / "offender.py").write_text(f"import {package}.{forbidden}\n")
    passed, report = lint(tmp_path)
    assert not passed
    [broken] = [line for line in report.splitlines() if " BROKEN" in line]
    assert broken.startswith(LAYERED[package]["name"])


def test_edge_alone_may_import_what_is_above_it(tmp_path: Path, lint: Lint) -> None:
    write_packages(tmp_path)
    (tmp_path / "edge_drafting" / "client.py").write_text(
        "import draftwire._calls\nimport speculative_engine\nimport torch\n"
    )
    passed, report = lint(tmp_path)
    assert passed, report


def test_a_circle_inside_the_model_is_found(tmp_path: Path, lint: Lint) -> None:
    """Of files as of folders, and also for the types alone."""
    write_packages(tmp_path)
    model = tmp_path / "speculative_engine" / "model"
    model.joinpath("layers").mkdir()
    for name in ("__init__", "fused"):
        model.joinpath("layers", f"{name}.py").touch()
    model.joinpath("layers", "kinds.py").write_text("def late():\n    import speculative_engine.model.packed_model\n")
    model.joinpath("packed_model.py").touch()
    assert lint(tmp_path)[0]
    back = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import speculative_engine.model.layers.fused\n"
    model.joinpath("packed_model.py").write_text(back)
    passed, report = lint(tmp_path)
    assert not passed
    [broken] = [line for line in report.splitlines() if " BROKEN" in line]
    assert broken.startswith("Inside the engine's model no imports run in a circle")


@pytest.mark.parametrize("package", sorted(LAYERED))
def test_a_new_part_of_a_package_needs_a_layer(tmp_path: Path, lint: Lint, package: str) -> None:
    write_packages(tmp_path)
    (tmp_path / package / "attic.py").touch()
    passed, report = lint(tmp_path)
    assert not passed
    assert f"{package}.attic" in report


def test_allowed_imports_pass(tmp_path: Path, lint: Lint) -> None:
    write_packages(tmp_path)
    engine = "import numpy\nimport torch\n"
    service = "import draftwire\nimport grpc\nimport service_runtime\nimport speculative_engine\n"
    (tmp_path / "speculative_engine" / "model" / "module.py").write_text(engine)
    (tmp_path / "drafter_service" / "service" / "module.py").write_text(service)
    (tmp_path / "verifier_service" / "service" / "module.py").write_text(service)
    (tmp_path / "gateway" / "http" / "module.py").write_text(
        "import draftwire\nimport fastapi\nimport service_runtime.process\nimport uvicorn\n"
    )
    (tmp_path / "draft_training" / "distillation" / "module.py").write_text(
        "import draftwire\nimport speculative_engine\nimport torch\n"
    )
    passed, report = lint(tmp_path)
    assert passed, report


def imported_tests(source: str, package: str = "") -> list[str]:
    """Returns the test files, and the conftest files of other packages, that a source imports from."""
    if not any(re.search(r"\b(test_|conftest\b)", statement) for statement in TESTS_IMPORTS.findall(source)):
        return []  # parsing all files takes seconds
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules += [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            modules += [each.name for each in node.names]
    return [each for each in modules if re.match(rf"tests\.((\w+\.)*test_|(?!{package}\.)(\w+\.)+conftest\b)", each)]


def test_no_test_file_is_imported() -> None:
    """Code that tests and benchmarks share is in tests/harness, and a conftest.py is of its own package."""
    assert imported_tests("from tests.sdk.test_cli import Command") == ["tests.sdk.test_cli.Command"]
    assert imported_tests("if True:\n    from tests.sdk import test_cli") == ["tests.sdk.test_cli"]
    assert imported_tests("import tests.sdk.conftest", "gateway") == ["tests.sdk.conftest"]
    assert imported_tests("from tests.harness.waiting import PATIENCE\nimport tests.sdk.conftest", "sdk") == []
    for path in sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]):
        assert imported_tests(path.read_text(encoding="utf-8"), path.relative_to(ROOT).parts[1]) == [], path


@pytest.mark.processes
class TestCheckout:
    def test_imports_run_one_way(self) -> None:
        program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
        done = subprocess.run(
            [sys.executable, "-c", program, "--config", str(CONFIG), "--no-cache"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "sdk", ROOT)))},
            capture_output=True,
            text=True,
            timeout=LONG_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
