"""The bundled models, inflated to a size at which verifying reads weights from memory."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

from models.inflate import inflate


def inflated(model: Path, millions: float) -> Path:
    """Returns a model of about `millions` million parameters with the outputs of `model`, made once in the temporary
    directory."""
    weights = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / "draftwire-inflated" / f"{model.name}-{weights}-{millions:g}M"
    if not place.exists():
        print(f"inflating {model.name} to {millions:g} M parameters in {place}", file=sys.stderr)
        with tempfile.TemporaryDirectory() as unfinished:
            made = Path(unfinished) / "model"
            inflate(model, made, round(millions * 1e6))
            place.parent.mkdir(parents=True, exist_ok=True)
            made.rename(place)
    return place
