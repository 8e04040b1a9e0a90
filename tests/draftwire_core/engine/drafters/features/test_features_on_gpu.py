"""Drafters on the features of a target on a GPU, which is pretended: they draft as on a CPU."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from draftwire_core.engine.drafters.blocks.block_network import Block, Reading
from draftwire_core.engine.drafters.drafter import Growth
from draftwire_core.engine.drafters.model.local_model import LocalModelDrafter
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.model.backends import choose_backend
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, specs_of, tiny_model
from tests.harness.engine.feature_engine import cheap_drafter, inner_of
from tests.harness.engine.pretended_gpu import PretendedGpu, plain, pretended_gpu, to_gpu
from tests.harness.models.eagle_checkpoints import write_parallel
from tests.harness.models.eagle_training import SPECS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

FEW = specs_of([spec.tokens for spec in SPECS[:2]], 14, GREEDY)


@pytest.fixture(autouse=True)
def _no_time_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cycle has one call of the network, for four steps if one call drafts several."""
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: True)
    monkeypatch.setattr(LocalModelDrafter, "_pays", lambda *_: False)
    monkeypatch.setattr(LocalModelDrafter, "_steps", lambda *_: 4)


@pytest.fixture(scope="module")
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        if find_spec("triton"):
            on_gpu(tiny_model("Llama", num_hidden_layers=1), None)  # the first one reads the kernels
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
    assert found.accepted >= expected.accepted - 2


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(choose_backend, "missing", lambda *_: None)  # which refuses float32


@pytest.mark.parametrize("network", ["dflash", "parallel"], indirect=True)
def test_blocks_are_guessed_by_captured_passes(gpu: PretendedGpu, network: tuple[str, Path], kernels: None) -> None:
    """With the logits of a CPU, for two blocks behind one text."""
    model, found = tiny_model("Llama"), []
    tokens, features = [5, 9, 14], torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    for target in (packed(model, 100), on_gpu(model, None, 100)):
        blocks = inner_of(drafted_engine(target, *network))._network
        assert blocks.model.captured == (9 if target.captured else 0)
        slots, read = blocks.model.pool.take(3), features.to(target.device)
        blocks.read(Reading(slots[:0], tokens, np.arange(1, 4), read, slots))
        block = Block(slots, tokens[-1], 3, read[-1:])
        found.append(plain(blocks.guess([block, block], 2)))
    assert found[0].shape == found[1].shape and torch.equal(found[0].isfinite(), found[1].isfinite())
    assert (found[0] - found[1]).nan_to_num().abs().max() < 1e-3


def test_a_cycle_is_two_copies_and_two_waits(gpu: PretendedGpu, trained: Path, kernels: None) -> None:
    """One for the draft, whatever its steps, and one for the target's pass."""
    model = tiny_model("Llama")
    few = specs_of([SPECS[1].tokens], 6, GREEDY)
    expected = generate(engine_of(packed(model, 400)), few)
    engine = drafted_engine(on_gpu(model, None), "eagle3", trained)
    drafter, counts, cycles = inner_of(engine), [], []
    grow = drafter.grow
    assert drafter.model.captured == drafter.model.drafts.captured == 9

    def counted(steps: int = 1) -> Growth:
        with gpu.counted() as cycle:
            growth = grow(steps)
        counts.append((steps, Counter(cycle)))
        cycles.append(cycle)  # goes on counting until the next one
        return growth

    drafter.grow = counted
    found = generate(engine, few)
    assert found.tokens == expected.tokens and found.accepted > 1 and found.steps < expected.steps
    ahead = [index for index, (steps, count) in enumerate(counts) if steps > 1 and count["launches"] == 1]
    assert ahead
    for index in ahead:
        assert counts[index][1] == {"copies to the device": 1, "launches": 1, "copies back": 1, "waits": 1}
        # The pass, two that keep its results, and three that copy, map and keep what the tap has read.
        assert cycles[index] == {"copies to the device": 2, "launches": 7, "copies back": 2, "waits": 2}


def test_steps_at_once_draft_what_single_steps_do(gpu: PretendedGpu, trained: Path, kernels: None) -> None:
    target, found = on_gpu(tiny_model("Llama"), None), []
    for steps in (2, 1):
        engine = drafted_engine(target, "eagle3", trained)
        engine.add(specs_of([SPECS[1].tokens], 8, GREEDY)[0])
        engine.step()
        drafter, drafted = inner_of(engine), []
        for _ in range(2 // steps):
            with gpu.counted() as count:
                for proposal in drafter.grow(steps).proposals.values():
                    drafted += zip(proposal.token_ids, proposal.parent_ids, strict=True)
            assert (count["launches"] == 1) == (steps > 1)
        found.append(drafted)
    assert found[0] == found[1] and len(found[0]) > 1
