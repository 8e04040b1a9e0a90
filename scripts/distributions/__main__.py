"""Writes the distributions' source trees: `python -m scripts.distributions OUT [--version 0.1.0]`."""

import argparse
import sys
from pathlib import Path

from .project_file import SDK, SERVICES
from .references import UnknownReferenceError
from .source_tree import write_tree
from .version import version_of

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Writes the trees and prints their paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the trees")
    parser.add_argument("--version", default="", help="by default the checkout's, from git")
    options = parser.parse_args()
    version = options.version or version_of(ROOT)
    for name in (SDK, SERVICES):
        try:
            print(write_tree(name, ROOT, options.out, version))
        except UnknownReferenceError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
