"""The supported recurrent mixers of transformers."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from draftwire_core.engine.model.recurrent.mixer import Mixer
from draftwire_core.engine.model.recurrent.mixers import (
    DeltaMixer,
    KimiMixer,
    Mamba2Mixer,
    ShortConvMixer,
    interleaved,
    joined,
    separate,
)
from draftwire_core.engine.model.recurrent.scan_mixers import LruMixer, MambaMixer
from draftwire_core.engine.model.recurrent.shift_mixers import RwkvAttentionMixer, RwkvForwardMixer

MIXERS: dict[str, Callable[[nn.Module], Mixer]] = {
    "Qwen3NextGatedDeltaNet": lambda module: DeltaMixer(module, interleaved),
    "Qwen3_5GatedDeltaNet": lambda module: DeltaMixer(module, joined),
    "Qwen3_5MoeGatedDeltaNet": lambda module: DeltaMixer(module, joined),
    "OlmoHybridGatedDeltaNet": lambda module: DeltaMixer(module, separate),
    "KimiLinearDeltaAttention": KimiMixer,
    "Lfm2ShortConv": ShortConvMixer,
    "Lfm2MoeShortConv": ShortConvMixer,
    "Lfm3ShortConv": ShortConvMixer,
    "Mamba2Mixer": Mamba2Mixer,
    "NemotronHMamba2Mixer": Mamba2Mixer,
    "GraniteMoeHybridMambaLayer": Mamba2Mixer,
    "FalconH1Mixer": Mamba2Mixer,
    "BambaMixer": Mamba2Mixer,
    "Zamba2MambaMixer": Mamba2Mixer,
    "MambaMixer": MambaMixer,
    "FalconMambaMixer": MambaMixer,
    "JambaMambaMixer": MambaMixer,
    "RecurrentGemmaRecurrentBlock": LruMixer,
    "RwkvSelfAttention": RwkvAttentionMixer,
    "RwkvFeedForward": RwkvForwardMixer,
}
"""The maker of a mixer, by the class name of its module."""
