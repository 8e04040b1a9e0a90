"""Drafters on the features of a target on a GPU, which is pretended: they draft as on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.backends import choose_backend
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, specs_of, tiny_model
from tests.harness.engine.feature_engine import cheap_drafter
from tests.harness.engine.pretended_gpu import PretendedGpu, pretended_gpu, to_gpu
from tests.harness.models.eagle_checkpoints import write_parallel
from tests.harness.models.eagle_training import SPECS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

FEW = specs_of([spec.tokens for spec in SPECS[:2]], 14, GREEDY)


@pytest.fixture(scope="module")
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        yield found


def on_gpu(model: PreTrainedModel, lacking: str | None, slots: int = 400) -> PackedModel:
    """A model on the pretended GPU. lacking: what the kernels lack; None for nothing."""
    moved = copy.deepcopy(model)
    to_gpu(moved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_backend, "missing", lambda *_: lacking)
        found = PackedModel(moved, slots)
        assert found.device.type == "cuda" and found.can_be_tapped
        found.capture_graphs()
    return found


def drafted_engine(target: PackedModel, kind: str, directory: Path) -> VerificationEngine:
    engine = engine_of(target)
    engine.__class__ = Attached
    engine.add_drafter(kind, cheap_drafter(kind, target, directory))
    return engine


@pytest.fixture(params=["eagle3", "dflash", "parallel"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A method, and the directory of its network."""
    if request.param == "parallel":
        return "eagle3", write_parallel(tmp_path)
    return request.param, request.getfixturevalue("trained" if request.param == "eagle3" else "trained_dflash")


def test_they_draft_beside_plain_passes(gpu: PretendedGpu, network: tuple[str, Path]) -> None:
    model = tiny_model("Llama")
    expected = generate(drafted_engine(packed(model, 400), *network), FEW)
    found = generate(drafted_engine(on_gpu(model, "a compiler"), *network), FEW)
    assert found.tokens == expected.tokens and found.drafted > 0
    assert found.accepted >= expected.accepted - 4


def test_they_draft_beside_captured_passes(gpu: PretendedGpu, trained: Path) -> None:
    pytest.importorskip("triton")
    model = tiny_model("Llama")
    few = specs_of([SPECS[1].tokens], 8, GREEDY)
    plain = generate(engine_of(packed(model, 400)), few)
    target = on_gpu(model, None)
    assert target.captured == 9 and target.draws_in_pass
    found = generate(drafted_engine(target, "eagle3", trained), few)
    assert found.tokens == plain.tokens and found.accepted > 2 and found.steps < plain.steps
