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
NO_TORCH = "A drafter is chosen without torch"
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


def folder(directory: Path, package: str) -> Path:
    """The folder of a package."""
    return directory.joinpath(*package.split("."))


def write_packages(directory: Path) -> None:
    """Writes empty packages with the names of the project's."""
    for package in (
        "draftwire",
        "draftwire_tools",
        "draftwire_core",
        "draftwire_core/adapters",
        "draftwire_core/adapters/common",
        "draftwire_core/adapters/vllm",
        "draftwire_core/adapters/sglang",
        "draftwire_core/edge",
        "draftwire_core/engine",
        "draftwire_core/pool",
        "draftwire_core/runtime",
        "draftwire_core/suggesting",
        "draftwire_core/training",
        "drafter_service",
        "verifier_service",
        "gateway_service",
        "draftwire_vllm",
        "draftwire_sglang",
        "benchmarks",
    ):
        (directory / package).mkdir()
        (directory / package / "__init__.py").touch()
    for package, contract in LAYERED.items():
        for part in re.split(r" [|:] ", " | ".join(contract["layers"])):
            room = folder(directory, package) / part
            room.mkdir(exist_ok=True)
            (room / "__init__.py").touch()
    (directory / "draftwire" / "edge" / "__init__.py").write_text("import draftwire_core.edge\n")  # the one exemption


@pytest.mark.parametrize(
    ("package", "forbidden", "contract"),
    [
        ("draftwire/cli", "draftwire_core.runtime", LAYERS),
        ("draftwire/cli", "verifier_service", LAYERS),
        ("draftwire/cli", "draftwire_tools", LAYERS),
        ("draftwire_tools", "draftwire_core.engine", LAYERS),
        ("draftwire_tools", "numpy", SMALL_SDK),
        ("draftwire_core/runtime/rpc", "draftwire_core.engine", LAYERS),
        ("draftwire_core/engine/model", "draftwire_core.runtime", LAYERS),
        ("draftwire_core/engine/model", "drafter_service", LAYERS),
        ("drafter_service/service", "verifier_service", LAYERS),
        ("draftwire_core/training/refresh", "verifier_service", LAYERS),
        ("draftwire_core/pool/drafter", "verifier_service", LAYERS),
        ("draftwire_core/adapters/vllm", "verifier_service", LAYERS),
        ("draftwire_core/adapters/sglang", "draftwire_core.adapters.vllm", LAYERS),
        ("draftwire_core/adapters/common", "draftwire_core.adapters.sglang", LAYERS),
        ("draftwire_core/engine/model", "draftwire_core.pool", LAYERS),
        ("draftwire_core/suggesting", "draftwire_core.pool", LAYERS),
        ("draftwire_core/suggesting", "draftwire_core.engine.loading", NO_TORCH),
        ("draftwire_core/suggesting", "torch", NO_TORCH),
        ("draftwire_core/engine/model", "draftwire_core.training", LAYERS),
        ("draftwire/cli", "draftwire_core.training", LAYERS),
        ("draftwire/cli", "gateway_service", LAYERS),
        ("gateway_service/http", "verifier_service", LAYERS),
        ("gateway_service/http", "draftwire_core.runtime.rpc", GATEWAY),
        ("gateway_service/http", "draftwire_core.runtime.security", GATEWAY),
        ("gateway_service/http", "draftwire_core.runtime.errors", GATEWAY),
        ("gateway_service/http", "draftwire_core.pool", GATEWAY),
        ("gateway_service/http", "draftwire_core.engine", GATEWAY),
        ("gateway_service/http", "torch", GATEWAY),
        ("gateway_service/http", "grpc", GATEWAY),
        ("draftwire_core/runtime/process", "grpc", PROCESS),
        ("draftwire_core/runtime/process", "draftwire.v1", PROCESS),
        ("draftwire/_calls", "fastapi", SMALL_SDK),
        ("draftwire_core/engine/model", "grpc", NO_GRPC),
        ("draftwire_core/runtime/rpc", "torch", NO_MODEL),
        ("draftwire/_calls", "transformers", NO_MODEL),
        ("draftwire/_calls", "numpy", SMALL_SDK),
        ("draftwire/cli", "draftwire_core.engine", LAYERS),
        ("draftwire/cli", "draftwire_core.edge", LAYERS),
        ("draftwire/edge", "draftwire_core.engine", LAYERS),
        ("draftwire_core/edge", "verifier_service", LAYERS),
        ("gateway_service/http", "draftwire_core.edge", LAYERS),
        ("draftwire/edge", "draftwire_core.runtime", LAYERS),
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
        ("draftwire_core.engine", "drafters", "engine"),
        ("draftwire_core.engine", "engine", "loading"),
        ("draftwire_core.engine", "model", "drafters"),
        ("draftwire_core.engine", "acceptance", "model"),
        ("draftwire_core.engine", "kv", "model"),
        ("draftwire_core.engine", "logits", "sampling"),
        ("draftwire_core.engine", "tree", "planning"),
        ("draftwire_core.runtime", "process", "rpc"),
        ("draftwire_core.pool", "drafter", "routing"),
        ("verifier_service", "reading", "running"),
        ("drafter_service", "verifiers", "models"),
        ("gateway_service", "http", "settings"),
        ("gateway_service", "choices", "openai"),
        ("gateway_service", "openai", "routes"),
        ("gateway_service", "console", "routes"),
        ("gateway_service", "observability", "http"),
        ("draftwire", "_calls", "_sync"),
        ("draftwire", "_sync", "_async"),
        ("draftwire", "_messages", "_calls"),
        ("draftwire", "_types", "_messages"),
        ("draftwire", "_auth", "_messages"),
        ("draftwire", "errors", "_auth"),
        ("draftwire", "client", "cli"),
        ("draftwire", "version", "errors"),
        ("draftwire", "_async", "client"),
        ("draftwire_core.training", "distillation", "refresh"),
        ("draftwire_core.training", "data", "teachers"),
        ("draftwire_core.training", "medusa", "distillation"),
        ("draftwire_core.training", "refresh", "cli"),
    ],
)
def test_a_forbidden_import_inside_a_package_is_found(
    tmp_path: Path, lint: Lint, package: str, room: str, forbidden: str
) -> None:
    write_packages(tmp_path)
    (folder(tmp_path, package) / room / "offender.py").write_text(f"import {package}.{forbidden}\n")
    passed, report = lint(tmp_path)
    assert not passed
    [broken] = [line for line in report.splitlines() if " BROKEN" in line]
    assert broken.startswith(LAYERED[package]["name"])


def test_edge_alone_may_import_what_is_above_it(tmp_path: Path, lint: Lint) -> None:
    write_packages(tmp_path)
    (tmp_path / "draftwire_core/edge" / "client.py").write_text(
        "import draftwire._calls\nimport draftwire_core.engine\nimport torch\n"
    )
    passed, report = lint(tmp_path)
    assert passed, report


def test_a_circle_inside_the_model_is_found(tmp_path: Path, lint: Lint) -> None:
    """Of files as of folders, and also for the types alone."""
    write_packages(tmp_path)
    model = tmp_path / "draftwire_core/engine" / "model"
    model.joinpath("layers").mkdir()
    for name in ("__init__", "fused"):
        model.joinpath("layers", f"{name}.py").touch()
    model.joinpath("layers", "kinds.py").write_text(
        "def late():\n    import draftwire_core.engine.model.packed_model\n"
    )
    model.joinpath("packed_model.py").touch()
    assert lint(tmp_path)[0]
    back = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import draftwire_core.engine.model.layers.fused\n"
    model.joinpath("packed_model.py").write_text(back)
    passed, report = lint(tmp_path)
    assert not passed
    [broken] = [line for line in report.splitlines() if " BROKEN" in line]
    assert broken.startswith("Inside the engine's model no imports run in a circle")


@pytest.mark.parametrize("package", sorted(LAYERED))
def test_a_new_part_of_a_package_needs_a_layer(tmp_path: Path, lint: Lint, package: str) -> None:
    write_packages(tmp_path)
    (folder(tmp_path, package) / "attic.py").touch()
    passed, report = lint(tmp_path)
    assert not passed
    assert f"{package}.attic" in report


def test_allowed_imports_pass(tmp_path: Path, lint: Lint) -> None:
    write_packages(tmp_path)
    engine = "import numpy\nimport torch\n"
    service = "import draftwire\nimport grpc\nimport draftwire_core.runtime\nimport draftwire_core.engine\n"
    (tmp_path / "draftwire_core/engine" / "model" / "module.py").write_text(engine)
    (tmp_path / "drafter_service" / "service" / "module.py").write_text(service)
    (tmp_path / "verifier_service" / "service" / "module.py").write_text(service)
    (tmp_path / "gateway_service" / "http" / "module.py").write_text(
        "import draftwire\nimport fastapi\nimport draftwire_core.runtime.process\nimport uvicorn\n"
    )
    (tmp_path / "draftwire_core/training" / "distillation" / "module.py").write_text(
        "import draftwire\nimport draftwire_core.engine\nimport torch\n"
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
    assert imported_tests("import tests.sdk.conftest", "gateway_service") == ["tests.sdk.conftest"]
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
