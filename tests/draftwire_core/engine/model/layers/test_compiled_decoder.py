"""A pass in compiled calls has the bits of the same pass by modules, and reads no memory that is not its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.kv.kv_slots import KvCache, SlotPool
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.layers.decoder_layer import LayersTogether
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import VOCABULARY, packed, random_tokens, tiny_model
from tests.harness.engine.fused_models import fused_model
from tests.harness.engine.special_models import quick_model
from tests.harness.models.gguf_model import write_gguf

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")

GEMMA = {
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def from_gguf(place: Path, name: str, type_name: str, **sizes: Any) -> PackedModel:
    model = tiny_model(name, torch.bfloat16, hidden_size=256, intermediate_size=256, head_dim=64, **sizes)
    return PackedModel.load(
        str(write_gguf(place / "model.gguf", model.config, model.state_dict(), type_name)), slots=90
    )


def check_passes(model: PackedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, a step of one row, and one with branches give the same logits either way, also where another cache was
    used in between, and so do the head's inputs and what taps read."""
    compiled = model.passes.compiled
    assert compiled is not None and compiled.decoder is not None
    slots = model.pool.take(40)
    tokens = random_tokens(40)

    def steps() -> list[torch.Tensor]:
        found = [model.forward(batch) for batch in (prompt(tokens), single(), branches())]
        return [*found, *with_states(prompt(tokens)), *read_between_layers()]

    def with_states(batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        return model.forward_with_states(batch)

    def read_between_layers() -> list[torch.Tensor]:
        layers = range(0, model.layers + 1, 2)
        width = len(layers) * model.hidden_size
        tap = Tap(layers, torch.nn.Identity(), SlotStates(model.pool.capacity, width, torch.bfloat16))
        few = Tap([1], torch.nn.Identity(), SlotStates(model.pool.capacity, model.hidden_size, torch.bfloat16))
        few.rows = np.array([2, 7, 19])
        batch = prompt(tokens)
        batch.taps = [tap, few]
        logits = model.forward(batch)
        return [logits, tap.states.read(slots[:20]), few.states.read(slots[few.rows])]

    def prompt(text: list[int]) -> PackedBatch:
        builder = BatchBuilder()
        rows = [builder.add_row(text[at], at, int(slots[at]), at in (3, 19)) for at in range(20)]
        builder.add_lane(slots[:0], rows)
        builder.want(7)
        return builder.build(model.group_size, model.device)

    def single() -> PackedBatch:
        builder = BatchBuilder()
        builder.add_lane(slots[:20], [builder.add_row(tokens[20], 20, int(slots[20]), True)])
        return builder.build(model.group_size, model.device)

    def branches() -> PackedBatch:
        builder = BatchBuilder()
        root, left, right = (
            builder.add_row(tokens[at], at - (at > 22), int(slots[at]), at > 21) for at in (21, 22, 23)
        )
        builder.add_lane(slots[:21], [root, left])
        builder.add_lane(slots[:21], [root, right], 1)
        builder.add_lane(np.empty(0, dtype=np.int64), [builder.add_row(tokens[30], 0, int(slots[30]), True)])
        return builder.build(model.group_size, model.device)

    found = steps()
    with model.other_slots(SlotPool(50)):
        elsewhere = steps()
        model.forward(prompt(random_tokens(40, seed=1)))
        with monkeypatch.context() as by_modules:  # which use the same layers
            by_modules.setattr(compiled, "decoder", None)
            model.forward(single())
    assert torch.equal(model.forward(single()), found[1])  # its context was not written to
    again = steps()
    monkeypatch.setattr(compiled, "decoder", None)
    expected = steps()
    for kind in (found, elsewhere, again):
        assert all(torch.equal(*pair) for pair in zip(kind, expected, strict=True))


@pytest.mark.parametrize("case", ["biases", "two kinds of angles"])
def test_bits_are_those_of_the_modules(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_passes(packed(fused_model(case, torch.bfloat16), slots=90), monkeypatch)


@pytest.mark.parametrize(
    ("name", "type_name", "sizes"), [("Llama", "Q4_1", {}), ("Gemma3", "Q6_K", GEMMA), ("Llama", "F16", {})]
)
def test_bits_of_gguf_models(
    name: str, type_name: str, sizes: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_passes(from_gguf(tmp_path, name, type_name, **sizes), monkeypatch)


def test_layers_that_keep_their_first_cache_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = LayersTogether.place

    def once(layers: LayersTogether, cache: KvCache) -> None:
        if layers._cache is None:
            place(layers, cache)

    monkeypatch.setattr(LayersTogether, "place", once)
    with pytest.raises(AssertionError):
        check_passes(packed(fused_model("biases", torch.bfloat16), slots=90), monkeypatch)


def test_a_token_that_is_not_there_is_refused(tmp_path: Path) -> None:
    model = from_gguf(tmp_path, "Llama", "Q8_0")
    slots = model.pool.take(1)
    for token in (-1, VOCABULARY):
        builder = BatchBuilder()
        builder.add_lane(slots[:0], [builder.add_row(token, 0, int(slots[0]), True)])
        with pytest.raises(IndexError):
            model.forward(builder.build(model.group_size, model.device))


def test_rows_without_logits() -> None:
    model = packed(quick_model(), slots=40)
    slots = model.pool.take(2)
    builder = BatchBuilder()
    builder.add_lane(slots[:0], [builder.add_row(5, 0, int(slots[0]), False)])
    assert model.forward(builder.build(model.group_size, model.device)).shape == (0, model.vocab_size)
