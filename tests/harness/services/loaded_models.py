"""Lends tiny models to tests: loading one costs more than most tests do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftwire_core.engine.model.packed_model import PackedModel

_idle: dict[tuple[Path, int], list[PackedModel]] = {}


@contextmanager
def loaded_model(checkpoint: Path, slots: int) -> Iterator[PackedModel]:
    """Lends a model that no other test uses, with an empty KV cache."""
    idle = _idle.setdefault((checkpoint, slots), [])
    model = idle.pop() if idle else PackedModel.load(str(checkpoint), slots=slots, dtype="float32")
    yield model
    if model.pool.used == 0:
        idle.append(model)
