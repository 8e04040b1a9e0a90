"""The target model as the verifier's callers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire.v1.verifier_service_pb2 import ChatFormat
from draftwire_core.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The part of GetModelInfo that does not change while a verifier runs."""

    info: ModelInfo
    tokenizer: Tokenizer
    chat_format: ChatFormat
    limits: Limits
    build: str
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
