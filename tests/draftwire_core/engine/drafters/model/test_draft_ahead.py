"""Drafts of several steps by one call, on a GPU that is pretended: the proposals of single steps."""

import copy
from collections.abc import Iterator, Sequence

import pytest
import torch

from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import random_tokens, tiny_model
from tests.harness.engine.pretended_gpu import PretendedGpu, pretended_gpu, to_gpu
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

pytest.importorskip("triton")
prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

SAMPLINGS = [SamplingParams(temperature=0.8, top_p=0.9, seed=5), SamplingParams(temperature=0.0)]
FILTERED = SamplingParams(temperature=1.0, typical_p=0.9, seed=3)
Drafted = dict[int, list[tuple[int, int, float]]]


@pytest.fixture(scope="module")
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        yield found


@pytest.fixture(scope="module")
def model(gpu: PretendedGpu) -> PackedModel:
    model = copy.deepcopy(tiny_model("Llama", torch.float16, num_hidden_layers=1))
    to_gpu(model)
    packed = PackedModel(model, 400, row_exact=False)
    packed.capture_graphs()
    assert packed.drafts is not None and packed.drafts.captured == 9
    return packed


def drafter_of(
    model: PackedModel, growth: TreeGrowth, lengths: Sequence[int] = (5, 9), nodes: int = 12
) -> DraftModelDrafter:
    drafter = DraftModelDrafter(model, growth)
    for number, length in enumerate(lengths):
        drafter.open(number, DraftSpec(random_tokens(length, seed=number), SAMPLINGS[number], nodes, 100))
    return drafter


def close(*drafters: DraftModelDrafter) -> None:
    """Ends all sequences."""
    for drafter in drafters:
        for number in list(drafter._drafts):
            drafter.close(number)
    assert drafters[0].model.pool.used == 0


def grown(drafter: DraftModelDrafter, steps: int) -> Drafted:
    """Everything that is drafted until there is nothing left to do, by sequence."""
    found: Drafted = {}
    while drafter.busy:
        for key, each in drafter.grow(steps).proposals.items():
            assert isinstance(key, int)
            found.setdefault(key, []).extend(zip(each.token_ids, each.parent_ids, each.log_probs, strict=True))
    return found


def test_the_proposals_of_single_steps(gpu: PretendedGpu, model: PackedModel) -> None:
    check_proposals(gpu, model, 1, lengths=(5,), nodes=3, verdicts=1)


@pytest.mark.slow
class TestTrees:
    @pytest.mark.parametrize("width", [1, 3])
    def test_the_proposals_of_single_steps(self, gpu: PretendedGpu, model: PackedModel, width: int) -> None:
        check_proposals(gpu, model, width, lengths=(5, 65), nodes=12, verdicts=2)


def check_proposals(
    gpu: PretendedGpu, model: PackedModel, width: int, *, lengths: Sequence[int], nodes: int, verdicts: int
) -> None:
    """Also after verdicts, of which the first sequence's are in the tree and the second's are not."""
    costs = (StepCost([1, 16], [1.0, 8.0]) for _ in range(2))  # so that a step has few rows
    alone, ahead = (
        drafter_of(model, TreeGrowth(cost, width=width, credit_worth=0.0), lengths, nodes) for cost in costs
    )
    for round_ in range(1 + verdicts):
        with gpu.counted() as few:
            found = grown(ahead, 4)
        with gpu.counted() as many:
            assert found == grown(alone, 1)
        assert round_ or [len(each) for each in found.values()] == [nodes] * len(lengths)
        assert few["waits"] < many["waits"] or (round_ and few == many)
        for number, length in enumerate(lengths):
            token = next(iter(ahead._drafts[number].tree.root.children), 1)
            for drafter in (alone, ahead):
                drafter.commit(number, length + 1 + round_, [token if number == 0 else (token + 1) % 100])
    close(alone, ahead)


def test_a_chain_of_steps_is_one_launch_and_one_wait(gpu: PretendedGpu, model: PackedModel) -> None:
    drafter = drafter_of(model, TreeGrowth(width=1, credit_worth=0.0))
    drafter.grow(1)  # reads the prompts
    with gpu.counted() as count:
        growth = drafter.grow(2)
    assert count == {"copies to the device": 1, "launches": 1, "copies back": 1, "waits": 1}
    assert [len(each.token_ids) for each in growth.proposals.values()] == [2, 2]
    close(drafter)


def test_rows_that_need_more_than_the_best_tokens_are_drafted_step_by_step(model: PackedModel) -> None:
    drafter = drafter_of(model, TreeGrowth(width=1, credit_worth=0.0), (5,))
    drafter.open(2, DraftSpec(random_tokens(5, seed=4), FILTERED, 12, 100))
    drafter.grow(1)
    growth = drafter.grow(4)
    assert [len(each.token_ids) for each in growth.proposals.values()] == [1, 1]
    close(drafter)


def test_without_room_for_all_rows_steps_are_single(model: PackedModel) -> None:
    drafter = drafter_of(model, TreeGrowth(width=3))
    drafter.grow(1)
    pool = model.pool
    taken = pool.take(pool.free - 60)
    used = pool.used
    growth = drafter.grow(4)
    assert pool.used - used == sum(growth.rows.values()) > 0
    pool.give_back(taken)
    close(drafter)
