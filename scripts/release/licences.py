"""Checks the licences of all packages that an installation of draftwire contains.

    python -m scripts.release.licences PIP_LICENSES

PIP_LICENSES is the program pip-licenses, which lies in an environment of its own: `make licences` sets it up.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from packaging.utils import canonicalize_name

from scripts.release.packages import brought, vendored

ALLOWED = (
    "0BSD",
    "Apache-2.0",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "HPND",
    "ISC",
    "LLVM-exception",
    "MIT",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
)
"""Licences under which everybody may use a package next to ones with other licences. MPL-2.0 binds changes of the
package's own files alone."""
_NAMES = {
    "apache software license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd license": "BSD",
    "bsd": "BSD",
    "3-clause bsd license": "BSD-3-Clause",
    "new bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "psf": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "historical permission notice and disclaimer (hpnd)": "HPND",
}
"""Names by which packages call their licences, besides the identifiers of SPDX."""
_OF_NVIDIA = ("nvidia-", "cuda-")
"""Beginnings of the names of CUDA's libraries, which torch requires for GPUs, under NVIDIA's own licence."""


def licences(told: str) -> set[str]:
    """Returns the licences that a package names, as identifiers of SPDX where they are known.

    Of a choice ("MIT OR Apache-2.0") all have to be allowed, which is stricter than needed.
    """
    parts = re.split(r"\s+(?:AND|OR|WITH)\s+|;|/|\(|\)", told) if _is_expression(told) else told.split(";")
    return {_NAMES.get(part.strip().lower(), part.strip()) for part in parts if part.strip()}


def _is_expression(told: str) -> bool:
    return re.search(r"\s(AND|OR|WITH)\s", told) is not None


def refused(found: dict[str, str]) -> dict[str, str]:
    """Returns those of some packages, by name, whose licence is not allowed or not known."""
    return {name: told for name, told in found.items() if not (names := licences(told)) or not names <= set(ALLOWED)}


def found_by(program: Path) -> dict[str, str]:
    """Returns the licences of the packages that an installation contains, by name."""
    names = {name for name in brought() if not name.startswith(_OF_NVIDIA)}
    command = [
        str(program),
        f"--python={sys.executable}",
        "--from=mixed",
        "--with-system",
        "--format=json",
        "--packages",
        *sorted(names),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {str(canonicalize_name(each["Name"])): str(each["License"]) for each in json.loads(done.stdout)}
    if missing := names - found.keys():
        raise RuntimeError(f"pip-licenses says nothing about {', '.join(sorted(missing))}")
    return found


def main() -> None:
    """Prints how many packages have which licence. Ends with status 1 if one may not be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="pip-licenses")
    found = found_by(parser.parse_args().program) | {each["name"]: each["license"] for each in vendored()}
    for name, told in refused(found).items():
        print(f"{name}: the licence {told!r} is not among those that are allowed", file=sys.stderr)
    print(f"{len(found)} packages: {', '.join(sorted({each for told in found.values() for each in licences(told)}))}")
    sys.exit(1 if refused(found) else 0)


if __name__ == "__main__":
    main()
