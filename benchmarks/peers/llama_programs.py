"""llama.cpp's own programs, which somebody has compiled for this processor."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

VARIABLE = "LLAMA_CPP_BIN"
"""Environment variable with the directory, where no option has it."""


def add_llama_option(parser: argparse.ArgumentParser) -> None:
    """Adds --llama-cpp."""
    parser.add_argument(
        "--llama-cpp",
        metavar="DIR",
        default=os.environ.get(VARIABLE, ""),
        help=f"directory of llama.cpp's programs (llama-server, llama-quantize, llama-perplexity), or its build "
        f"directory; ${VARIABLE} by default",
    )


def llama_program(directory: str, name: str) -> Path:
    """Returns the path of a program in llama.cpp's build directory or in its `bin`.

    Raises FileNotFoundError, which names the program.
    """
    if not directory:
        raise FileNotFoundError(f"{name} is needed: give --llama-cpp DIR, or set {VARIABLE}")
    for place in (Path(directory), Path(directory) / "bin"):
        if os.access(place / name, os.X_OK) and (place / name).is_file():
            return (place / name).resolve()
    raise FileNotFoundError(f"there is no program {name} in {directory}, nor in its bin")
