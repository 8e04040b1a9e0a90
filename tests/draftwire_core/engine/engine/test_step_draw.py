"""Drawing on the device, with one copy back, gives the same tokens as drawing on the host."""

import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from draftwire_core.engine.engine import step_draw
from draftwire_core.engine.engine.step_draw import draw_step, draw_step_on_device, tree_of
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.device_sampler import DeviceDraw
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import (
    GREEDY,
    engine_of,
    generate,
    random_tokens,
    specs_of,
    tiny_model,
)
from tests.harness.engine.pretended_gpu import pretended_gpu, to_gpu
from tests.harness.engine.random_work import random_job, walked

SAMPLINGS = [GREEDY, SamplingParams(temperature=0.8, seed=1), SamplingParams(temperature=1.2, seed=2)]
FILTERED = [*SAMPLINGS, SamplingParams(temperature=1.0, top_p=0.9, seed=3)]


@pytest.mark.parametrize("samplings", [SAMPLINGS, FILTERED], ids=["plain", "filtered"])
def test_a_step(samplings: list[SamplingParams]) -> None:
    rng = random.Random(1)
    jobs = [random_job(rng, number) for number in range(4)]
    params: list[SamplingParams] = []
    for job in jobs:
        job.sampled_positions = list(range(1 + len(job.nodes)))
        params += [rng.choice(samplings)] * len(job.sampled_positions)
    jobs.insert(2, random_job(rng, 9))  # the first part of a prompt, which draws nothing
    jobs[2].nodes.clear()
    logits = torch.randn(len(params), 300)
    logits[:, :3] += 6  # the tokens of the nodes
    logits[5] = torch.nan
    batch = SamplingBatch.build(params, list(range(len(params))))
    expected = draw_step(logits, batch)
    found = draw_step_on_device(logits, batch, torch.tensor(tree_of(jobs)))
    assert found.tokens == expected.tokens and found.tokens[5] == -1
    assert (found.on_path is None) == batch.filters
    first = 0
    for job in jobs:
        last = first + len(job.sampled_positions)
        if last > first:
            path = None if found.on_path is None else found.on_path[first:last]
            assert job.walk(walked(found.tokens[first:last], path)) == job.walk(walked(expected.tokens[first:last]))
        first = last


def test_rows_that_are_not_settled_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = random_job(random.Random(2), 0)
    job.sampled_positions = list(range(1 + len(job.nodes)))
    count = len(job.sampled_positions)
    logits = torch.randn(count, 300)
    batch = SamplingBatch.build([SAMPLINGS[1]] * count, list(range(count)))
    unsettled = torch.arange(count) % 2 == 0

    def half(logits: torch.Tensor, batch: SamplingBatch) -> DeviceDraw:
        token_ids = step_draw.sample(logits, batch).token_ids
        return DeviceDraw(token_ids.masked_fill(unsettled, 299), ~unsettled)

    monkeypatch.setattr(step_draw, "draw", half)
    found = draw_step_on_device(logits, batch, torch.tensor(tree_of([job])))
    assert found == draw_step(logits, batch)


class HostNumbers(TorchDispatchMode):
    """Counts tensors that are made of the host's numbers, each of which is a copy that waits on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += call in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
        return call(*args, **(kwargs or {}))


def test_drawing_needs_no_more_numbers_of_the_host() -> None:
    jobs = [random_job(random.Random(3), 0)]
    jobs[0].sampled_positions = list(range(1 + len(jobs[0].nodes)))
    count = len(jobs[0].sampled_positions)
    batch = SamplingBatch.build([SAMPLINGS[1]] * count, list(range(count)))
    tree = torch.tensor(tree_of(jobs))
    numbers = HostNumbers()
    with numbers:
        draw_step_on_device(torch.randn(count, 300), batch, tree)
        assert numbers.count == 0
        torch.tensor([1, 2])
    assert numbers.count == 1


def test_what_sampling_needs_is_sent_before_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """After it, the device would be idle meanwhile."""
    order: list[str] = []

    def noted(holder: Any, name: str) -> None:
        call = getattr(holder, name)
        monkeypatch.setattr(holder, name, lambda *args, **options: (order.append(name), call(*args, **options))[1])

    with pretended_gpu():
        moved = tiny_model("Llama")
        to_gpu(moved)
        model = PackedModel(moved, 400, kernels=False)
        model.sampler = None
        noted(SamplingBatch, "build")
        noted(step_draw, "to_device")
        noted(model, "forward")
        generate(engine_of(model), specs_of([random_tokens(5)], 2, GREEDY))
    assert order == ["build", "to_device", "forward"] * 2
