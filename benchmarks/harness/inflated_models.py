"""The bundled models and published ones, inflated to a size at which verifying reads weights from memory."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from models import eagle_growth, filler, hybrid_growth
from models import inflate as recipe
from models import widen as widening
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
    return _made_once(
        f"{model.name}-{digest}-{millions:g}M",
        lambda made: recipe.inflate(model, made, round(millions * 1e6), layers=LAYERS.get(millions)),
    )


def widened(model: Path, millions: float) -> Path:
    """Returns a model of about `millions` million parameters with the outputs of a published one, by wider feed-forward
    layers, made once in the temporary directory. model: a GGUF file."""
    code = "".join(map(inspect.getsource, (widening, filler)))
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(code.encode())
    return _made_once(
        f"{model.stem}-{digest.hexdigest()[:12]}-{millions:g}M",
        lambda made: widening.write_widened(model, made, round(millions * 1e6)),
    )


def grown_eagle(eagle: Path, millions: float) -> Path:
    """Returns the EAGLE-3 drafter of the bundled target grown for `inflated(target, millions)`, made once in the
    temporary directory."""
    target = inflated(MODELS / "target", millions)
    hidden = json.loads((target / "config.json").read_text(encoding="utf-8"))["hidden_size"]
    code = "".join(map(inspect.getsource, (eagle_growth, filler)))
    made_from = [(eagle / name).read_bytes() for name in ("config.json", "model.safetensors")]
    digest = hashlib.sha256(b"".join(made_from) + f"{code}{hidden}".encode()).hexdigest()[:12]
    return _made_once(f"eagle-{digest}-{millions:g}M", lambda made: eagle_growth.inflate_eagle(eagle, made, hidden))


def _made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Returns a directory of that name in the temporary directory. make: writes the directory, if it is not there."""
    place = Path(tempfile.gettempdir()) / "draftwire-inflated" / name
    if not place.exists():
        print(f"making {place}", file=sys.stderr)
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as unfinished:
            made = Path(unfinished) / "model"
            make(made)
            made.rename(place)
    return place
