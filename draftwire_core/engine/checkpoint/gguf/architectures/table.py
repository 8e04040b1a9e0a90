"""All architectures that are read from GGUF files."""

from __future__ import annotations

from draftwire_core.engine.checkpoint.gguf.architectures.dense import DENSE
from draftwire_core.engine.checkpoint.gguf.architectures.gemma import GEMMA
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import GgufArchitecture
from draftwire_core.engine.checkpoint.gguf.architectures.hybrids import HYBRIDS
from draftwire_core.engine.checkpoint.gguf.architectures.mixtures import MIXTURES
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufArray, GgufMetadata

ARCHITECTURE = "general.architecture"
"""The key of the architecture's name."""
ALL = (*DENSE, *GEMMA, *MIXTURES, *HYBRIDS)
"""The architectures; of a family the first part that fits a file."""
_LONGEST_NAME = 64


def architecture_of(metadata: GgufMetadata) -> GgufArchitecture:
    """The architecture of a file. Raises ModelLoadError, which names the supported ones, for another."""
    name = metadata.text(ARCHITECTURE)
    family = [each for each in ALL if each.name == name]
    if not family:
        names = ", ".join(sorted({each.name for each in ALL}))
        raise metadata.refusal(
            ARCHITECTURE,
            f"{name[:_LONGEST_NAME]!r} is not supported; give the model's directory of safetensors instead "
            f"(supported are {names})",
        )
    experts = _is_set(metadata, f"{name}.expert_count")
    for part in family:
        if part.mixture in (None, experts) and (not part.when or _is_set(metadata, f"{name}.{part.when}")):
            return part
    told = (
        "mixtures of experts are not supported"
        if experts
        else "is missing or 0; only mixtures of experts are supported"
    )
    raise metadata.refusal(f"{name}.expert_count", f"architecture {name}: {told}")


def _is_set(metadata: GgufMetadata, key: str) -> bool:
    value = metadata.get(key, 0)
    return isinstance(value, GgufArray) or bool(value)
