"""A target and a draft model on their hosts: step times and agreement, measured or assumed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.harness.simulated_models import Agreement, Place
from benchmarks.simulation.simulated_setting import Curve


@dataclass(frozen=True)
class Around:
    """Seconds of a service's work outside forward passes: planning, proposals, verdicts, messages."""

    step: float = 0.0
    sequence: float = 0.0
    """Additional seconds per sequence of the step."""

    def __post_init__(self) -> None:
        for name in ("step", "sequence"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a time in seconds")

    def seconds(self, sequences: int) -> float:
        """Returns the seconds of a step with this many sequences."""
        return self.step + self.sequence * sequences


@dataclass(frozen=True)
class ModelPairTimes:
    """Everything that a simulation knows about two models and the machines that run them."""

    name: str
    source: str
    """Source of the numbers: "assumed", or what was measured on which machine."""
    target: Curve
    """Step times of the verifier by rows."""
    draft: Curve
    """Step times of the drafter by rows."""
    agreement: Agreement | Sequence[Sequence[Place]]
    """How often the models agree; or a draft model's predictions at each place of real texts."""
    target_around: Around = field(default_factory=Around)
    draft_around: Around = field(default_factory=Around)
    line: float = 0.0
    """Seconds of a round trip between neighbouring services: messages, and their way through both processes."""
    client: float = 0.0
    """Seconds of a request in which no step works on it, for a client that sends the next request at once: from its
    last token to the next request, from there to the verifier's step, and from the first token back to the client."""

    def __post_init__(self) -> None:
        for name in ("line", "client"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not a time in seconds")
        if not isinstance(self.agreement, Agreement) and (not self.agreement or not all(self.agreement)):
            raise ValueError("texts: there are none, or an empty one")

    def places(self, length: int, seed: str) -> Agreement | list[Place]:
        """Returns the `agreement` of ModelPair for a text of so many tokens: all texts in random order, repeatedly."""
        if isinstance(self.agreement, Agreement):
            return self.agreement
        rng, found = random.Random(seed), list[Place]()
        while len(found) < length:
            for text in rng.sample(self.agreement, len(self.agreement)):
                found += text
        return found[:length]


_GPU_FACTORS = {1: 1.0, 64: 1.05, 256: 1.3, 512: 2.0, 1024: 3.8}
"""Step times of a large model on a GPU by rows, relative to one row. Assumed: each step reads the weights once, and
from some 300 rows on arithmetic dominates."""


def gpu_like(target_seconds: float = 0.030, draft_seconds: float = 0.003, agreement: float = 0.75) -> ModelPairTimes:
    """Returns the design's setting, of which nothing is measured."""

    def curve(seconds: float) -> Curve:
        return Curve(tuple(_GPU_FACTORS), tuple(seconds * factor for factor in _GPU_FACTORS.values()))

    return ModelPairTimes(
        f"GPU-like: target {1e3 * target_seconds:g} ms, draft {1e3 * draft_seconds:g} ms, agreement {agreement:g}",
        "assumed",
        curve(target_seconds),
        curve(draft_seconds),
        Agreement.of(agreement),
        Around(0.0005, 0.00003),
        Around(0.0003, 0.00002),
        line=0.0003,
    )


def write(pair: ModelPairTimes, path: Path) -> None:
    """Writes a pair in the format of `read`."""
    agreement = asdict(pair.agreement) if isinstance(pair.agreement, Agreement) else pair.agreement
    content = {
        "name": pair.name,
        "source": pair.source,
        "target_seconds": dict(zip(pair.target.rows, pair.target.seconds, strict=True)),
        "draft_seconds": dict(zip(pair.draft.rows, pair.draft.seconds, strict=True)),
        "target_around": asdict(pair.target_around),
        "draft_around": asdict(pair.draft_around),
        "line_seconds": pair.line,
        "client_seconds": pair.client,
        "agreement" if isinstance(pair.agreement, Agreement) else "texts": agreement,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> ModelPairTimes:
    """Reads a calibration, as written by `--calibrate`. Raises OSError; ValueError that names the wrong field."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path}: not an object")
    known = {"name", "source", "target_seconds", "draft_seconds", "target_around", "draft_around", "line_seconds"}
    known |= {"client_seconds", "agreement", "texts"}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"{path}: {unknown[0]}: unknown")
    if ("agreement" in content) == ("texts" in content):
        raise ValueError(f"{path}: needs either agreement or texts")

    def field_of(name: str) -> object:
        if name not in content:
            raise ValueError(f"{path}: {name}: missing")
        return content[name]

    try:
        return ModelPairTimes(
            str(field_of("name")),
            str(field_of("source")),
            _curve(field_of("target_seconds"), "target_seconds"),
            _curve(field_of("draft_seconds"), "draft_seconds"),
            _agreement(content),
            _around(field_of("target_around"), "target_around"),
            _around(field_of("draft_around"), "draft_around"),
            _number(field_of("line_seconds"), "line_seconds"),
            _number(field_of("client_seconds"), "client_seconds"),
        )
    except ValueError as error:
        raise error if str(error).startswith(str(path)) else ValueError(f"{path}: {error}") from error


def _agreement(content: Mapping[str, object]) -> Agreement | Sequence[Sequence[Place]]:
    if "texts" not in content:
        try:
            given = dict(content["agreement"])
            return Agreement(**{**given, "by_rank": tuple(given["by_rank"])})
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"agreement: {error}") from error
    texts = content["texts"]
    try:
        return [[(right, [float(each) for each in said]) for right, said in text] for text in texts]
    except (TypeError, ValueError) as error:
        raise ValueError(f"texts: {error}") from error


def _curve(points: object, name: str) -> Curve:
    try:
        pairs = sorted((int(rows), float(seconds)) for rows, seconds in dict(points).items())
        return Curve(tuple(rows for rows, _ in pairs), tuple(seconds for _, seconds in pairs))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _around(given: object, name: str) -> Around:
    try:
        return Around(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _number(given: object, name: str) -> float:
    if not isinstance(given, (int, float)) or isinstance(given, bool):
        raise ValueError(f"{name}: {given!r} is no number")
    return float(given)
