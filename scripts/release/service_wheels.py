"""Collects the wheels of the packages that services need besides torch and transformers.

    python scripts/release/service_wheels.py wheels --python 3.12

For a machine without a network that has torch and transformers, but not the packages of the services. Versions are
those of constraints.txt. On that machine no pip is needed: a wheel is an archive, and the directory that all are
extracted to goes into PYTHONPATH (`scripts/first_gpu.sh` does so with the directory `wheels`):

    for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" packages; done
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
THERE = {"huggingface-hub", "numpy", "safetensors", "tokenizers", "torch", "transformers"}
"""Requirements that are left out: transformers requires them."""
ALONE = {"gguf"}
"""Requirements without their own: these require NumPy, and would hide the machine's."""
PLATFORMS = ("manylinux2014_x86_64", *(f"manylinux_2_{version}_x86_64" for version in range(17, 32)))
"""Linux with glibc 2.31 or newer, as in Debian 11 and Ubuntu 20.04."""


def wanted() -> tuple[list[str], list[str]]:
    """The requirements of the SDK and the services, without those that are there: with their own requirements, and
    without."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    named = {each: re.split(r"[<>=!; \[]", each, maxsplit=1)[0] for each in every}
    whole = [each for each, name in named.items() if name not in THERE | ALONE]
    return whole, [each for each, name in named.items() if name in ALONE]


def main() -> None:
    """Downloads the wheels. The exit status is pip's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the wheels go")
    parser.add_argument("--python", default="3.12", help="version of Python of the machine they are for")
    options = parser.parse_args()
    platforms = [part for platform in PLATFORMS for part in ("--platform", platform)]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(options.directory),
        "--python-version", options.python, *platforms, "--constraint", str(ROOT / "constraints.txt"),
    ]  # fmt: skip
    whole, alone = wanted()
    sys.exit(
        subprocess.run([*command, *whole], check=False).returncode
        or subprocess.run([*command, "--no-deps", *alone], check=False).returncode
    )


if __name__ == "__main__":
    main()
