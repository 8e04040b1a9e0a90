"""The import directions of CONTRIBUTING.md hold, and the check that says so can fail."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "pyproject.toml"
LAYERS = "Imports run one way"
INSIDE_ENGINE = "Inside the engine imports run one way"
ENGINE = (
    "in_process", "early_exit_calibration", "loading", "engine", "drafters", "acceptance", "model", "sampling",
    "planning", "logits", "text", "checkpoint", "tree", "kernels", "kv", "field_error",
)  # fmt: skip
NO_GRPC = "The engine knows no gRPC"
NO_MODEL = "The SDK and the runtime know no model"
GATEWAY = "The gateway knows the SDK alone"
SMALL_SDK = "The SDK needs grpcio, protobuf, typer and rich only"


def lint_imports(directory: Path, *import_roots: Path) -> subprocess.CompletedProcess[str]:
    """Check the packages found from `directory` against the project's contracts."""
    lint = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return subprocess.run(
        [sys.executable, "-c", lint, "--config", str(CONFIG), "--no-cache"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, import_roots))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def write_packages(directory: Path) -> None:
    """Write empty packages, named like the project's."""
    for package in (
        "draftwire",
        "speculative_engine",
        "service_runtime",
        "drafter_pool",
        "drafter_service",
        "verifier_service",
        "draftwire_vllm",
        "draft_training",
        "gateway",
    ):
        (directory / package).mkdir()
        (directory / package / "__init__.py").touch()
    for room in ENGINE:
        (directory / "speculative_engine" / room).mkdir()
        (directory / "speculative_engine" / room / "__init__.py").touch()
    for part in ("edge", "v1"):
        (directory / "draftwire" / part).mkdir()
        (directory / "draftwire" / part / "__init__.py").touch()


def test_imports_run_one_way() -> None:
    result = lint_imports(ROOT, ROOT / "sdk", ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("package", "forbidden", "contract"),
    [
        ("draftwire", "service_runtime", LAYERS),
        ("draftwire", "verifier_service", LAYERS),
        ("service_runtime", "speculative_engine", LAYERS),
        ("speculative_engine/model", "service_runtime", LAYERS),
        ("speculative_engine/model", "drafter_service", LAYERS),
        ("drafter_service", "verifier_service", LAYERS),
        ("draft_training", "verifier_service", LAYERS),
        ("drafter_pool", "verifier_service", LAYERS),
        ("draftwire_vllm", "verifier_service", LAYERS),
        ("speculative_engine/model", "drafter_pool", LAYERS),
        ("speculative_engine/model", "draft_training", LAYERS),
        ("draftwire", "draft_training", LAYERS),
        ("draftwire", "gateway", LAYERS),
        ("gateway", "verifier_service", LAYERS),
        ("gateway", "service_runtime", GATEWAY),
        ("gateway", "speculative_engine", GATEWAY),
        ("gateway", "torch", GATEWAY),
        ("gateway", "grpc", GATEWAY),
        ("draftwire", "fastapi", SMALL_SDK),
        ("speculative_engine/model", "grpc", NO_GRPC),
        ("service_runtime", "torch", NO_MODEL),
        ("draftwire", "transformers", NO_MODEL),
        ("draftwire", "numpy", SMALL_SDK),
        ("draftwire", "speculative_engine", LAYERS),
        ("draftwire/edge", "service_runtime", LAYERS),
        ("draftwire/edge", "torch", NO_MODEL),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, package: str, forbidden: str, contract: str) -> None:
    write_packages(tmp_path)
    (tmp_path / package / "offender.py").write_text(f"def late():\n    import {forbidden}\n")
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]
    assert len(broken) == 1
    assert broken[0].startswith(contract)


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [("drafters", "engine"), ("engine", "loading"), ("model", "drafters"), ("acceptance", "model"), ("kv", "model"),
     ("logits", "sampling"), ("tree", "planning")],
)  # fmt: skip
def test_a_forbidden_import_inside_the_engine_is_found(tmp_path: Path, room: str, forbidden: str) -> None:
    write_packages(tmp_path)
    (tmp_path / "speculative_engine" / room / "offender.py").write_text(f"import speculative_engine.{forbidden}\n")
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    [broken] = [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]
    assert broken.startswith(INSIDE_ENGINE)


def test_a_new_part_of_the_engine_needs_a_layer(tmp_path: Path) -> None:
    write_packages(tmp_path)
    (tmp_path / "speculative_engine" / "attic.py").touch()
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1
    assert "speculative_engine.attic" in result.stdout


def test_allowed_imports_pass(tmp_path: Path) -> None:
    write_packages(tmp_path)
    engine = "import draftwire\nimport torch\n"
    service = "import draftwire\nimport grpc\nimport service_runtime\nimport speculative_engine\n"
    (tmp_path / "speculative_engine" / "model" / "module.py").write_text(engine)
    (tmp_path / "drafter_service" / "module.py").write_text(service)
    (tmp_path / "verifier_service" / "module.py").write_text(service)
    (tmp_path / "gateway" / "module.py").write_text("import draftwire\nimport fastapi\nimport uvicorn\n")
    (tmp_path / "draft_training" / "module.py").write_text(
        "import draftwire\nimport speculative_engine\nimport torch\n"
    )
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def imported_tests(source: str) -> list[str]:
    """The test files that a source imports from."""
    modules = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules += [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            modules += [each.name for each in node.names]
    return [each for each in modules if re.match(r"tests\.(\w+\.)*test_", each)]


def test_no_test_file_is_imported() -> None:
    """What tests share is in tests/harness, or a fixture of a conftest.py."""
    assert imported_tests("from tests.sdk.test_cli import Command") == ["tests.sdk.test_cli.Command"]
    assert imported_tests("if True:\n    from tests.sdk import test_cli") == ["tests.sdk.test_cli"]
    assert imported_tests("from tests.harness.waiting import PATIENCE\nimport tests.sdk.conftest") == []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert imported_tests(path.read_text(encoding="utf-8")) == [], path
