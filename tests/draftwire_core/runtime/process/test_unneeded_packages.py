"""Services on CPUs do not import packages that only GPUs or losses need, and leave them importable."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import drafter_service.process
import verifier_service.process
from drafter_service.settings import DrafterSettings
from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.program import UNNEEDED, without_unneeded_packages
from draftwire_core.runtime.process.settings import ServiceSettings
from tests.harness.checkout import ROOT
from verifier_service.settings import VerifierSettings

_PROGRAM = """
import importlib, sys
from draftwire_core.runtime.process.program import UNNEEDED, without_unneeded_packages
if sys.argv[3] == "imported before":
    import scipy
with without_unneeded_packages(sys.argv[2]):
    importlib.import_module(sys.argv[1])
print(*sorted({*UNNEEDED} & {*sys.modules}))
import scipy.optimize, triton
"""


NAMES = ("draftwire_unneeded_early", "draftwire_unneeded_late")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two packages in the place of those that a model on a CPU never uses."""
    for name in NAMES:
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("draftwire_core.runtime.process.program.UNNEEDED", NAMES)
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("packages")
class TestHiding:
    def test_on_a_cpu_they_are_not_there_and_afterwards_they_are(self) -> None:
        with without_unneeded_packages("cpu"):
            for name in NAMES:
                with pytest.raises(ImportError):
                    importlib.import_module(name)
        for name in NAMES:
            importlib.import_module(name)

    def test_what_is_imported_already_stays(self) -> None:
        early, late = NAMES
        importlib.import_module(early)
        with without_unneeded_packages("cpu"):
            importlib.import_module(early)
            with pytest.raises(ImportError):
                importlib.import_module(late)
        assert early in sys.modules
        assert late not in sys.modules

    def test_on_a_gpu_they_are_imported(self) -> None:
        with without_unneeded_packages("cuda"):
            for name in NAMES:
                importlib.import_module(name)

    def test_they_come_back_after_an_error(self) -> None:
        with pytest.raises(KeyError), without_unneeded_packages("cpu"):
            raise KeyError
        for name in NAMES:
            importlib.import_module(name)


class Halted(Exception):
    """Ends a start."""


@pytest.mark.parametrize(
    ("module", "kind"),
    [(verifier_service.process, VerifierSettings), (drafter_service.process, DrafterSettings)],
    ids=["verifier", "drafter"],
)
async def test_services_begin_to_import_without_them(
    module: Any, kind: type[ServiceSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 so imports its service, other ranks what follows it."""
    (tmp_path / "config.json").touch()
    told: list[str] = []

    def hiding(device: str) -> NoReturn:
        told.append(device)
        raise Halted

    monkeypatch.setattr(module, "without_unneeded_packages", hiding)
    monkeypatch.setattr(module, "share_interpreter", lambda device: None)
    settings = kind(model=str(tmp_path), device="cuda", listen="127.0.0.1:0")
    with pytest.raises(Halted):
        await module._run(settings, Shutdown())
    with pytest.raises(Halted):
        module._follow(settings, lambda: None)
    assert told == ["cuda", "cuda"]


@pytest.mark.slow
class TestServices:
    """In processes that have imported nothing before."""

    @pytest.mark.parametrize(
        ("module", "device", "before", "found"),
        [
            ("verifier_service.service", "cpu", "nothing before", []),
            ("drafter_service.service", "cpu", "nothing before", []),
            ("verifier_service.service", "cpu", "imported before", ["scipy"]),
            ("verifier_service.service", "cuda", "nothing before", ["scipy", "triton"]),
        ],
    )
    def test_what_a_service_imports(self, module: str, device: str, before: str, found: list[str]) -> None:
        assert {"scipy", "triton"} <= {*UNNEEDED}
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, module, device, before],
            cwd=ROOT,
            env=os.environ | {"TRITON_INTERPRET": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == found
