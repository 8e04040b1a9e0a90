"""The answer to a question for a GPU: a line of JSON, and a result like those of other benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu.device import usable_device
from benchmarks.gpu.figure_log import Figures
from benchmarks.harness.machine import gpu_name, machine
from benchmarks.harness.results import add_results_option, plain, save

_INTERPRET = "TRITON_INTERPRET"


def print_answer(question: str | None, find: Callable[[torch.device], Figures]) -> None:
    """Asks the device of the command line, and prints the answer.

    question: the running script's docstring. find: returns the figures; on a CPU those of a tiny setting, to try the
    code, with kernels in Triton's interpreter. It must import kernels itself, since the interpreter is chosen before.
    """
    parser = argparse.ArgumentParser(description=question, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the code")
    add_results_option(parser)
    options = parser.parse_args()
    device = usable_device(options.device)
    if device.type == "cpu":
        os.environ.setdefault(_INTERPRET, "1")
    started = time.perf_counter()
    with torch.inference_mode():
        figures = dict(find(device))
    figures["seconds"] = round(time.perf_counter() - started, 1)
    about = {"question": Path(sys.argv[0]).stem, "gpu": gpu_name(options.device), **machine()}
    print(json.dumps({**about, "figures": plain(figures)}), flush=True)
    save(figures, options)
