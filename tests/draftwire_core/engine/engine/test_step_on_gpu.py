"""What a step asks of a GPU, on one that is pretended: copies, launches and waits, and the tokens that come of it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

from draftwire_core.engine.engine import step_draw
from draftwire_core.engine.engine.feature_streams import FeatureKind
from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import StepResult
from draftwire_core.engine.logits.logit_changes import LogitChanges
from draftwire_core.engine.logits.processors import LogitBias, editors_of
from draftwire_core.engine.model.backends import choose_backend
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.features.feature_codec import decode
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import (
    GREEDY,
    ScriptedDrafter,
    engine_of,
    generate,
    packed,
    random_tokens,
    specs_of,
    tiny_model,
)
from tests.harness.engine.pretended_gpu import PretendedGpu, pretended_gpu, to_gpu
from tests.harness.kernels.drawn import numbers_of
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

pytest.importorskip("triton")
prepare_interpreter()

SAMPLINGS = [GREEDY, SamplingParams(temperature=0.8, seed=1), SamplingParams(temperature=1.2, seed=2**63 + 5)]
FILTERED = [SamplingParams(top_p=0.9, seed=3), SamplingParams(top_k=5, top_p=0.8, seed=4), SamplingParams(min_p=0.2)]
TYPICAL = SamplingParams(temperature=1.0, typical_p=0.9, seed=3)
PROMPTS = [random_tokens(count, seed=count) for count in (9, 3, 12)]
MODEL = tiny_model("Llama", num_hidden_layers=1)


@pytest.fixture(scope="module")
def gpu() -> Iterator[PretendedGpu]:
    with pretended_gpu() as found:
        on_gpu()  # the first one reads the kernels
        yield found
        on_gpu.cache_clear()


@cache
def on_gpu(*, captured: bool = True) -> PackedModel:
    moved = copy.deepcopy(MODEL)
    to_gpu(moved)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose_backend, "missing", lambda *_: None)  # which refuses float32
        model = PackedModel(moved, 400)
    assert model.device.type == "cuda" and model.draw_kernels == "yes"
    if captured:
        model.capture_graphs()
        assert model.captured == 9
    return model


def expected_of(specs: Sequence[SequenceSpec]) -> dict[int, list[int]]:
    return generate(engine_of(packed(MODEL)), specs, together=False).tokens


@pytest.mark.parametrize("drafted", [False, True], ids=["plain", "drafted"])
def test_a_step_is_two_copies_and_one_wait(gpu: PretendedGpu, drafted: bool) -> None:
    specs = specs_of([PROMPTS[0][:5], PROMPTS[1], PROMPTS[2][:5]], 5 if drafted else 3, SAMPLINGS)
    expected = expected_of(specs)
    model = on_gpu()
    engine = engine_of(model)
    step = engine.step
    counts: list[Counter[str]] = []
    rows: list[int] = []

    def counted() -> StepResult:
        with gpu.counted() as count:
            result = step()
        counts.append(count)
        rows.append(result.rows)
        return result

    engine.step = counted  # type: ignore[method-assign]
    found = generate(engine, specs, ScriptedDrafter(expected) if drafted else None)
    assert found.tokens == expected and drafted == (found.accepted > 0)
    assert drafted == (max(rows[1:]) > len(specs))
    assert max(rows) <= 32
    for count in counts:
        # The pass with its sampling is one launch; two more copy the results that the next pass will overwrite.
        assert count == {"copies to the device": 1, "launches": 3, "copies back": 1, "waits": 1}
    assert model.pool.used == 0


def test_a_prompt_is_read_in_large_chunks(gpu: PretendedGpu) -> None:
    """Of the size that services take: a pass of fewer rows leaves a GPU waiting for its next kernel."""
    assert on_gpu(captured=False).most_rows == 1024 and packed(MODEL).most_rows == 256


def test_hidden_states_are_on_the_host_when_the_step_ends(gpu: PretendedGpu) -> None:
    """Whoever sends them, in the event loop, would otherwise wait for all that the device has to do."""
    engine = engine_of(on_gpu())
    for number, prompt in enumerate(PROMPTS[:2]):
        engine.add(SequenceSpec(number, prompt[:5], 20, GREEDY))
        engine.attach(number, "remote", hidden_states=True)
    for _ in range(3):
        with gpu.counted() as count:
            outcomes = engine.step().outcomes
        for outcome in outcomes:
            assert outcome.hidden_state is not None and outcome.hidden_state.device.type == "cpu"
        assert count["copies back"] == 2  # the tokens, and the states of both


def test_features_of_all_drafters_are_one_copy(gpu: PretendedGpu) -> None:
    """Those of the committed tokens, as on a CPU; the copy is made while the step is settled."""
    spec = SequenceSpec(0, PROMPTS[0][:5], 8, GREEDY)
    found: list[list[tuple[str, int, bytes]]] = []
    for model in (packed(MODEL), on_gpu()):
        engine = engine_of(model)
        for source, layers in (("near", (0, 1)), ("far", (1,))):
            states = SlotStates(model.pool.capacity, 64 * len(layers), torch.float32)
            tap = Tap(layers, torch.nn.Identity(), states)
            assert engine.features.add(source, FeatureKind(layers, "", ""), "float16", tap)
        engine.add(spec)
        for source in ("near", "far"):
            engine.attach(0, source)
        sent: list[tuple[str, int, bytes]] = []
        while engine.running:
            with gpu.counted() as count:
                sent += [(each.source, each.first_position, each.values) for each in engine.step().features]
        found.append(sent)
        if model.device.type == "cuda":
            # The pass, and what keeps its results; a copy of what each tap reads, and both together.
            assert count == {"copies to the device": 1, "launches": 6, "copies back": 2, "waits": 2}
    expected, ours = found
    assert [each[:2] for each in ours] == [each[:2] for each in expected]
    for (_, _, one), (_, _, other) in zip(ours, expected, strict=True):
        difference = decode(one, 64, "float16") - decode(other, 64, "float16")
        assert difference.abs().max() < 0.05


def test_drawing_is_two_launches(gpu: PretendedGpu) -> None:
    sampler = on_gpu(captured=False).sampler
    assert sampler is not None
    numbers = torch.zeros((6, 3), dtype=torch.int64, device="cuda")
    numbers.copy_(numbers_of(SAMPLINGS, [0, 1, 2]))
    logits = torch.zeros((3, 300), device="cuda")
    with gpu.counted() as count:
        sampler.draw(logits, numbers)
    assert count == {"launches": 2}


@pytest.mark.slow
class TestMoreTokens:
    @pytest.mark.parametrize("captured", [True, False])
    def test_the_tokens_of_the_cpu(self, gpu: PretendedGpu, captured: bool) -> None:
        """With graphs and without."""
        specs = specs_of(PROMPTS, 6, SAMPLINGS)
        expected = expected_of(specs)
        model = on_gpu(captured=captured)
        drafted = generate(engine_of(model), specs, ScriptedDrafter(expected))
        assert drafted.tokens == expected and drafted.accepted > 4
        assert model.pool.used == 0


def test_filters_are_in_the_pass(gpu: PretendedGpu) -> None:
    specs = specs_of(PROMPTS, 3, FILTERED)
    expected = expected_of(specs)
    engine = engine_of(on_gpu())
    step = engine.step

    def counted() -> StepResult:
        with gpu.counted() as count:
            result = step()
        assert count == {"copies to the device": 1, "launches": 3, "copies back": 1, "waits": 1}
        return result

    engine.step = counted  # type: ignore[method-assign]
    assert generate(engine, specs).tokens == expected


def test_only_rows_with_typical_p_take_another_way(gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = specs_of(PROMPTS, 3, [SAMPLINGS[1], TYPICAL, SAMPLINGS[2]])
    expected = expected_of(specs)
    sample, rows = step_draw.sample, []
    monkeypatch.setattr(step_draw, "sample", lambda logits, batch: (rows.append(len(batch)), sample(logits, batch))[1])
    assert generate(engine_of(on_gpu()), specs).tokens == expected
    assert rows == [1] * 3


def test_edited_logits(gpu: PretendedGpu) -> None:
    """They are drawn from after the pass, by the same kernels."""

    def specs() -> list[SequenceSpec]:
        first, *others = specs_of(PROMPTS, 3, SAMPLINGS)
        return [replace(first, editors=(LogitBias({expected[0]: -100.0}),)), *others]

    expected = expected_of(specs_of(PROMPTS[:1], 1, GREEDY))[0]
    found = generate(engine_of(on_gpu()), specs()).tokens
    assert found == expected_of(specs()) and found[0][0] != expected[0]


def test_changes_to_the_logits_add_no_wait(gpu: PretendedGpu) -> None:
    """They are sent without waiting for the pass, and the step waits at its end alone."""
    changes = LogitChanges(
        repetition_penalty=1.3,
        presence_penalty=0.5,
        frequency_penalty=0.2,
        logit_bias={7: 3.0, 9: -2.0},
        banned_token_ids=(11, 12),
        bad_words=((5, 6), (20,)),
        min_tokens=3,
    )

    def specs() -> list[SequenceSpec]:
        first, *others = specs_of([PROMPTS[0][:5], PROMPTS[1]], 5, SAMPLINGS)
        return [replace(first, editors=editors_of(changes, PROMPTS[0][:5], [], {2, 10_000})), *others]

    expected = expected_of(specs())
    assert expected[0] != expected_of(specs_of([PROMPTS[0][:5]], 5, SAMPLINGS))[0]
    engine = engine_of(on_gpu())
    step = engine.step
    counts: list[Counter[str]] = []

    def counted() -> StepResult:
        with gpu.counted() as count:
            result = step()
        counts.append(count)
        return result

    engine.step = counted  # type: ignore[method-assign]
    assert generate(engine, specs(), ScriptedDrafter(expected)).tokens == expected
    assert counts and all(count["waits"] == count["copies back"] == 1 for count in counts), counts


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
def test_slots_are_sent_once(gpu: PretendedGpu) -> None:
    """A step that has a further whole tile of committed tokens queues a copy of its slots; those after it read that."""
    moved = tiny_model("Llama", torch.float16, num_hidden_layers=1)
    to_gpu(moved)
    model = PackedModel(moved, 400)
    model.capture_graphs()
    assert isinstance(model.steps, SlotSteps)
    layouts: list[SlotLayout] = []
    of = SlotLayout.of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotLayout, "of", lambda *given: layouts.append(of(*given)) or layouts[-1])
        engine = engine_of(model)
        (spec,) = specs_of([random_tokens(62, seed=1)], 6, GREEDY)
        engine.add(spec)
        while engine.running:
            with gpu.counted() as count:
                engine.step()
            launches = 3 + bool(layouts[-1].moves)
            assert count == {"copies to the device": 1, "launches": launches, "copies back": 1, "waits": 1}
    listed = [len(layout.seen) for layout in layouts]
    assert listed == [62, 63, 64, 65, 2, 3]  # behind 0, 62, 63, 64, 65 and 66 committed tokens, with the step's own row
    assert [len(layout.moves) for layout in layouts] == [0, 0, 0, 1, 0, 0]
    assert model.steps.tables.used == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
@pytest.mark.parametrize("name", ["Llama", "Phi3"])
def test_steps_on_the_kernels_of_layers(gpu: PretendedGpu, name: str) -> None:
    """Of the whole model, or of its attention alone."""
    made = tiny_model(name, torch.float16, num_hidden_layers=1)
    moved = copy.deepcopy(made)
    to_gpu(moved)
    model = PackedModel(moved, 400)
    assert model.layer_kernels == ("yes" if name == "Llama" else "attention") and model.draw_kernels == "yes"
    model.capture_graphs()
    assert model.captured == 9
    specs = specs_of([PROMPTS[1]], 4, [SAMPLINGS[1]])
    engine = engine_of(model)
    engine.add(specs[0])
    tokens: list[int] = []
    while len(tokens) < 4:
        with gpu.counted() as count:
            (outcome,) = engine.step().outcomes
        tokens += outcome.tokens
        assert count == {"copies to the device": 1, "launches": 3, "copies back": 1, "waits": 1}
    assert tokens == generate(engine_of(PackedModel(made, 400, kernels=True)), specs).tokens[specs[0].sequence_id]
