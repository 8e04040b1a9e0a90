"""Loads Medusa heads, which draft in place of a draft model."""

import time
from dataclasses import dataclass
from pathlib import Path

from drafter_service.conversation.handshake import MOST_TOKENS
from drafter_service.settings import DrafterSettings
from draftwire.v1 import model_info_pb2
from draftwire_core.engine.drafters import medusa_heads
from draftwire_core.engine.drafters.medusa_heads import MedusaHeads
from draftwire_core.engine.model.reading.read_model import resolve_dtype, usable_device
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """Loaded Medusa heads, and their description for verifiers."""

    heads: MedusaHeads
    info: model_info_pb2.ModelInfo


def load_heads(settings: DrafterSettings) -> LoadedHeads:
    """Loads Medusa heads, and the tokenizer in their directory if there is one. Raises ModelLoadError."""
    started = time.perf_counter()
    directory = Path(settings.medusa_heads)
    log.info("loading started", heads=settings.medusa_heads)
    device = usable_device(settings.device)
    dtype = resolve_dtype(settings.dtype, device)
    heads = medusa_heads.load_heads(settings.medusa_heads, dtype, device)
    # Published heads have no tokenizer; without one they are assumed to match the target.
    tokenizer = Tokenizer.load(settings.medusa_heads) if (directory / "tokenizer.json").exists() else None
    info = model_info_pb2.ModelInfo(
        model_id=directory.resolve().name,
        architecture="Medusa",
        parameters=sum(parameter.numel() for parameter in heads.parameters()),
        vocab_size=heads.vocab_size,
        context_length=MOST_TOKENS,  # heads see one hidden state at any length
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        tokenizer_sha256=tokenizer.sha256 if tokenizer is not None else "",
    )
    log.info(
        "heads loaded",
        heads=len(heads),
        hidden_size=heads.hidden_size,
        vocab_size=heads.vocab_size,
        seconds=round(time.perf_counter() - started, 3),
    )
    return LoadedHeads(heads, info)
