"""The import directions of CONTRIBUTING.md hold, and the check that says so can fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.waiting import PATIENCE

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "pyproject.toml"
LAYERS = "Imports run one way"
INSIDE_ENGINE = "Inside the engine imports run one way"
INSIDE_SDK = "Inside the SDK imports run one way"
ENGINE = (
    "in_process", "early_exit_calibration", "loading", "engine", "drafters", "acceptance", "model", "sampling",
    "planning", "logits", "text", "checkpoint", "tree", "kernels", "kv", "field_error",
)  # fmt: skip
SDK = (
    "cli", "client", "async_client", "drafters", "async_drafters", "edge", "_sync", "_async", "_calls", "_messages",
    "_auth", "_program", "errors", "_types", "v1", "version",
)  # fmt: skip
TRAINER = ("cli", "refresh", "distillation", "medusa", "teachers", "data")
INSIDE_TRAINER = "Inside the trainer imports run one way"
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
        "edge_drafting",
        "gateway",
    ):
        (directory / package).mkdir()
        (directory / package / "__init__.py").touch()
    for room in ENGINE:
        (directory / "speculative_engine" / room).mkdir()
        (directory / "speculative_engine" / room / "__init__.py").touch()
    for room in TRAINER:
        (directory / "draft_training" / room).mkdir()
        (directory / "draft_training" / room / "__init__.py").touch()
    for room in SDK:
        (directory / "draftwire" / room).mkdir()
        (directory / "draftwire" / room / "__init__.py").touch()
    (directory / "draftwire" / "edge" / "__init__.py").write_text("import edge_drafting\n")  # the one exemption


def test_imports_run_one_way() -> None:
    result = lint_imports(ROOT, ROOT / "sdk", ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("package", "forbidden", "contract"),
    [
        ("draftwire/cli", "service_runtime", LAYERS),
        ("draftwire/cli", "verifier_service", LAYERS),
        ("service_runtime", "speculative_engine", LAYERS),
        ("speculative_engine/model", "service_runtime", LAYERS),
        ("speculative_engine/model", "drafter_service", LAYERS),
        ("drafter_service", "verifier_service", LAYERS),
        ("draft_training/refresh", "verifier_service", LAYERS),
        ("drafter_pool", "verifier_service", LAYERS),
        ("draftwire_vllm", "verifier_service", LAYERS),
        ("speculative_engine/model", "drafter_pool", LAYERS),
        ("speculative_engine/model", "draft_training", LAYERS),
        ("draftwire/cli", "draft_training", LAYERS),
        ("draftwire/cli", "gateway", LAYERS),
        ("gateway", "verifier_service", LAYERS),
        ("gateway", "service_runtime", GATEWAY),
        ("gateway", "speculative_engine", GATEWAY),
        ("gateway", "torch", GATEWAY),
        ("gateway", "grpc", GATEWAY),
        ("draftwire/_calls", "fastapi", SMALL_SDK),
        ("speculative_engine/model", "grpc", NO_GRPC),
        ("service_runtime", "torch", NO_MODEL),
        ("draftwire/_calls", "transformers", NO_MODEL),
        ("draftwire/_calls", "numpy", SMALL_SDK),
        ("draftwire/cli", "speculative_engine", LAYERS),
        ("draftwire/cli", "edge_drafting", LAYERS),
        ("draftwire/edge", "speculative_engine", LAYERS),
        ("edge_drafting", "verifier_service", LAYERS),
        ("gateway", "edge_drafting", GATEWAY),
        ("draftwire/edge", "service_runtime", LAYERS),
        ("draftwire/edge", "torch", NO_MODEL),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, package: str, forbidden: str, contract: str) -> None:
    write_packages(tmp_path)
    (tmp_path / package / "offender.py").write_text(f"def late():\n    import {forbidden}\n")
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
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
    [broken] = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert broken.startswith(INSIDE_ENGINE)


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [("_calls", "_sync"), ("_sync", "_async"), ("_messages", "_calls"), ("_types", "_messages"), ("_auth", "_messages"),
     ("errors", "_auth"), ("client", "cli"), ("version", "errors"), ("_async", "client")],
)  # fmt: skip
def test_a_forbidden_import_inside_the_sdk_is_found(tmp_path: Path, room: str, forbidden: str) -> None:
    write_packages(tmp_path)
    (tmp_path / "draftwire" / room / "offender.py").write_text(f"import draftwire.{forbidden}\n")
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    [broken] = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert broken.startswith(INSIDE_SDK)


@pytest.mark.parametrize(
    ("room", "forbidden"),
    [("distillation", "refresh"), ("data", "teachers"), ("medusa", "distillation"), ("refresh", "cli")],
)
def test_a_forbidden_import_inside_the_trainer_is_found(tmp_path: Path, room: str, forbidden: str) -> None:
    write_packages(tmp_path)
    (tmp_path / "draft_training" / room / "offender.py").write_text(f"import draft_training.{forbidden}\n")
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    [broken] = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert broken.startswith(INSIDE_TRAINER)


def test_edge_alone_may_import_what_is_above_it(tmp_path: Path) -> None:
    write_packages(tmp_path)
    (tmp_path / "edge_drafting" / "client.py").write_text(
        "import draftwire._calls\nimport speculative_engine\nimport torch\n"
    )
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_new_part_of_the_sdk_needs_a_layer(tmp_path: Path) -> None:
    write_packages(tmp_path)
    (tmp_path / "draftwire" / "attic.py").touch()
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 1
    assert "draftwire.attic" in result.stdout


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
    (tmp_path / "draft_training" / "distillation" / "module.py").write_text(
        "import draftwire\nimport speculative_engine\nimport torch\n"
    )
    result = lint_imports(tmp_path, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
