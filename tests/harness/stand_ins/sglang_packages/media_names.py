"""The names of torchvision and torchaudio that SGLang imports with its processors of media, which a text needs not.

PyPI's builds are for torch with CUDA, and cannot be imported beside torch for CPUs.
"""

from __future__ import annotations

import enum
import importlib.machinery
import sys
import types

from transformers.utils.import_utils import is_torchaudio_available, is_torchvision_available

_MODULES = (
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
    "torchaudio",
    "torchaudio.functional",
    "torchaudio.transforms",
)


class InterpolationMode(enum.Enum):
    """Ways to resize an image."""

    BICUBIC = "bicubic"
    BILINEAR = "bilinear"
    NEAREST = "nearest"


def provide() -> None:
    """Puts modules with these names in place, unless the real ones are there. transformers is asked first, and
    remembers that they are not."""
    there = {"torchvision": is_torchvision_available(), "torchaudio": is_torchaudio_available()}
    for name in _MODULES:
        if there[name.partition(".")[0]]:
            continue
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.InterpolationMode = InterpolationMode  # type: ignore[attr-defined]
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
