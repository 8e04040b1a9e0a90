"""The bundled models, inflated to a size at which verifying reads weights from memory."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
from pathlib import Path

from models import eagle_growth, filler, hybrid_growth
from models import inflate as recipe
from tests.harness.checkout import MODELS

LAYERS = {1500.0: 28, 100.0: 16, 75.0: 6}
"""Layers of some sizes, in millions of parameters: as many as models of such sizes have that people run. The layers of
other sizes follow from the size."""


def inflated(model: Path, millions: float) -> Path:
    """Returns a model of about `millions` million parameters with the outputs of `model`, made once in the temporary
    directory."""
    code = "".join(map(inspect.getsource, (recipe, filler, hybrid_growth)))
    made_from = (model / "model.safetensors").read_bytes() + code.encode()
    digest = hashlib.sha256(made_from + str(LAYERS.get(millions)).encode()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / "draftwire-inflated" / f"{model.name}-{digest}-{millions:g}M"
    if not place.exists():
        print(f"inflating {model.name} to {millions:g} M parameters in {place}", file=sys.stderr)
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as unfinished:
            made = Path(unfinished) / "model"
            recipe.inflate(model, made, round(millions * 1e6), layers=LAYERS.get(millions))
            made.rename(place)
    return place


def grown_eagle(eagle: Path, millions: float) -> Path:
    """Returns the EAGLE-3 drafter of the bundled target grown for `inflated(target, millions)`, made once in the
    temporary directory."""
    target = inflated(MODELS / "target", millions)
    hidden = json.loads((target / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    code = "".join(map(inspect.getsource, (eagle_growth, filler)))
    made_from = [(eagle / name).read_bytes() for name in ("config.json", "model.safetensors")]
    digest = hashlib.sha256(b"".join(made_from) + f"{code}{hidden}".encode()).hexdigest()[:12]
    place = target.parent / f"eagle-{digest}-{millions:g}M"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as unfinished:
            made = Path(unfinished) / "model"
            eagle_growth.inflate_eagle(eagle, made, hidden)
            made.rename(place)
    return place
