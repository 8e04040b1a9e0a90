"""What a draft model's step asks of a GPU, on one that is pretended."""

import copy

import pytest

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.model.backends import choose_backend
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.proposal import Proposal
from tests.harness.engine.engines import random_tokens, tiny_model
from tests.harness.engine.pretended_gpu import PretendedGpu, pretended_gpu, to_gpu
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

pytest.importorskip("triton")
prepare_interpreter()

SAMPLINGS = [SamplingParams(temperature=0.8, seed=5), SamplingParams(temperature=0.0)]


def grown(model: PackedModel, gpu: PretendedGpu | None = None) -> list[tuple[object, Proposal]]:
    """Drafts for some sequences, without their verdicts, and checks what each step asks of the GPU."""
    drafter = DraftModelDrafter(model)
    for number, sampling in enumerate(SAMPLINGS):
        drafter.open(number, DraftSpec(random_tokens(5, seed=number), sampling, 8, 40))
    proposals: list[tuple[object, Proposal]] = []
    while drafter.busy:
        if gpu is None:
            proposals += drafter.grow().proposals.items()
            continue
        with gpu.counted() as count:
            proposals += drafter.grow().proposals.items()
        # The pass; two that keep logits and states; two kernels, and four to lay out what they read.
        assert count == {"copies to the device": 2, "launches": 9, "copies back": 1, "waits": 1}
    return proposals


def test_a_step_waits_once() -> None:
    model = tiny_model("Llama", num_hidden_layers=1)
    expected = grown(PackedModel(copy.deepcopy(model), 400, row_exact=False))
    with pretended_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        to_gpu(model)
        patch.setattr(choose_backend, "missing", lambda *_: None)  # which refuses float32
        moved = PackedModel(model, 400, row_exact=False)
        moved.drafts = None  # of several steps
        moved.capture_graphs()
        assert moved.captured == 9 and not moved.draws_in_pass
        found = grown(moved, gpu)
    assert [(number, each.token_ids) for number, each in found] == [
        (number, each.token_ids) for number, each in expected
    ]
    assert sum(len(each.token_ids) for _, each in found) > 4
