"""Engines with one drafter on the target's features, EAGLE-3 or DFlash."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from draftwire_core.engine.drafters.features.local_feature_drafter import LocalFeatureDrafter
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.loading.methods import METHODS, DraftedEngine
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import GREEDY, engine_of, packed, specs_of, tiny_model
from tests.harness.models.eagle_training import SPECS

SAMPLED = [SamplingParams(temperature=0.8, seed=seed) for seed in range(4)]
SHORT = specs_of([spec.tokens for spec in SPECS], 14)
MIXED = specs_of([spec.tokens for spec in SPECS], 14, [GREEDY, SAMPLED[1], GREEDY, SAMPLED[3]])
"""The sequences of `SPECS` with fewer tokens each, and in `MIXED` two of them sampled."""
COMPILED: dict[str, Any] = {"intermediate_size": 192, "head_dim": 64}
"""Sizes of a tiny model whose layers are compiled in bfloat16."""


def cheap_drafter(kind: str, target: PackedModel, directory: Path, **options: Any) -> LocalFeatureDrafter:
    """A drafter whose rounds are expected to cost nearly nothing, so that it always drafts, and deep trees."""
    method = METHODS[kind]
    drafter = method.make(method.options(model=str(directory), **options), target, True, DraftedEngine())
    assert isinstance(drafter, LocalFeatureDrafter)
    drafter._share = 0.01
    return drafter


def engine_on(
    base: PreTrainedModel,
    kind: str,
    directory: Path,
    slots: int = 1000,
    options: Mapping[str, Any] | None = None,
    **limits: int,
) -> VerificationEngine:
    """An engine of a target that attaches a `cheap_drafter` to every sequence. options: of the drafter."""
    engine = engine_of(packed(base, slots), **limits)
    engine.__class__ = Attached
    engine.add_drafter(kind, cheap_drafter(kind, engine.model, directory, **(options or {})))
    return engine


def engine_with(kind: str, directory: Path, **options: Any) -> VerificationEngine:
    """An engine of a tiny Llama. options: see `engine_on`."""
    return engine_on(tiny_model("Llama"), kind, directory, **options)


def local_of(engine: VerificationEngine) -> LocalFeatureDrafter:
    """The drafter of an engine that has one."""
    (drafter,) = engine._local._drafters.values()
    assert isinstance(drafter, LocalFeatureDrafter)
    return drafter


def inner_of(engine: VerificationEngine) -> Any:
    """What drafts single steps in it."""
    return local_of(engine)._drafter
