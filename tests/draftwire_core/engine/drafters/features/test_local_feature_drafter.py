"""EAGLE-3 and DFlash beside a target: their guesses save steps, and no token depends on them."""

from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.drafter import TappingDrafter
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.loading.methods import METHODS
from draftwire_core.engine.model.packed_model import ModelLoadError, PackedModel
from tests.harness.engine.engines import engine_of, generate, packed, tiny_model
from tests.harness.engine.feature_engine import (
    COMPILED,
    MIXED,
    SHORT,
    cheap_drafter,
    engine_on,
    engine_with,
    inner_of,
    local_of,
)
from tests.harness.engine.pretended_gpu import pretended_gpu, to_gpu
from tests.harness.models.dflash_checkpoints import dflash_config, write_dflash
from tests.harness.models.eagle_checkpoints import eagle_config, write_eagle
from tests.harness.models.eagle_training import SPECS, plain_tokens

FEWEST = {"eagle3": 80, "dflash": 25}
"""Of the 160 tokens of `SPECS`, how many guesses are accepted at least, if the drafter knows the texts."""


@pytest.fixture(params=FEWEST)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def knowing(kind: str, trained: Path, trained_dflash: Path) -> Path:
    return trained if kind == "eagle3" else trained_dflash


@pytest.fixture
def useless(kind: str, tmp_path: Path) -> Path:
    if kind == "eagle3":
        return write_eagle(tmp_path, eagle_config(draft_vocab_size=150))
    return write_dflash(tmp_path, dflash_config(draft_vocab_size=150))


@pytest.fixture
def plain() -> dict[int, list[int]]:
    return plain_tokens()


@pytest.fixture(scope="module")
def mixed() -> dict[int, list[int]]:
    """The plain output of each sequence of `MIXED`."""
    return generate(engine_of(packed(tiny_model("Llama"), 1000)), MIXED).tokens


class TestTheTokensAreThoseOfPlainDecoding:
    def test_greedy(self, kind: str, knowing: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(kind, knowing)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert result.accepted > FEWEST[kind]
        assert engine.model.pool.used == 0
        assert local_of(engine).model.pool.used == 0
        assert isinstance(local_of(engine), TappingDrafter)

    def test_sampled(self, kind: str, knowing: Path, mixed: dict[int, list[int]]) -> None:
        assert generate(engine_with(kind, knowing), MIXED).tokens == mixed

    def test_with_one_that_knows_nothing(self, kind: str, useless: Path, mixed: dict[int, list[int]]) -> None:
        engine = engine_with(kind, useless)
        result = generate(engine, MIXED)
        assert result.tokens == mixed
        assert result.drafted > 20
        assert engine.model.pool.used == 0
        assert local_of(engine).model.pool.used == 0

    def test_a_target_whose_layers_are_compiled(self, kind: str, useless: Path) -> None:
        base = tiny_model("Llama", torch.bfloat16, **COMPILED)
        expected = generate(engine_of(packed(base, 1000)), SHORT).tokens
        result = generate(engine_on(base, kind, useless), SHORT)
        assert result.tokens == expected
        assert result.drafted > 20

    def test_sequences_that_are_preempted(self, kind: str, knowing: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(kind, knowing, slots=120, max_tree_nodes=8)
        result = generate(engine, SPECS)
        assert result.tokens == plain
        assert engine.preemptions > 0
        assert result.accepted > FEWEST[kind] / 2.5

    def test_a_drafter_that_loses_its_own_slots(self, kind: str, knowing: Path, plain: dict[int, list[int]]) -> None:
        """It reads the features again, which the target's slots still have."""
        engine = engine_with(kind, knowing)
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        accepted = step = 0
        while engine.running:
            step += 1
            queue = inner_of(engine)._queue
            if step % 4 == 0 and 2 in queue.running:
                queue._preempt(2)
                queue.admit()
            for outcome in engine.step().outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert tokens == plain
        assert step > 8
        assert accepted > FEWEST[kind] * 0.6
        assert local_of(engine).model.pool.used == 0

    def test_attached_swapped_and_forgotten_midway(
        self, kind: str, knowing: Path, useless: Path, plain: dict[int, list[int]]
    ) -> None:
        engine = engine_of(packed(tiny_model("Llama"), 1000))
        for spec in SPECS:
            engine.add(spec)
        tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in SPECS}
        step = accepted = 0
        while engine.running:
            step += 1
            if step in (4, 8, 12):
                name, directory = ("good", knowing) if step != 8 else ("bad", useless)
                engine.forget("bad" if name == "good" else "good")
                engine.add_drafter(name, cheap_drafter(kind, engine.model, directory))
                for spec in SPECS:
                    engine.attach(spec.sequence_id, name)
            for outcome in engine.step().outcomes:
                tokens[outcome.sequence_id] += outcome.tokens
                accepted += outcome.accepted
        assert step > 12
        assert tokens == plain
        assert accepted > (10 if kind == "eagle3" else 0), "it drafts from the tokens computed since it was attached"

    def test_a_prefix_from_the_cache(self, kind: str, knowing: Path, plain: dict[int, list[int]]) -> None:
        engine = engine_with(kind, knowing)
        first = generate(engine, SPECS[2:3])
        again = generate(engine, SPECS[2:3])
        assert again.tokens == first.tokens == {2: plain[2]}
        assert again.accepted >= first.accepted - 3


def test_what_the_target_must_be(kind: str, knowing: Path) -> None:
    options, make = METHODS[kind].options, METHODS[kind].make
    engine = engine_of(packed(tiny_model("Llama"), 100))
    with pytest.raises(FieldError, match="must be given"):
        options()
    with pytest.raises(FieldError, match="window: must be at least 0, got -1"):
        options(model=str(knowing), window=-1)
    with pytest.raises(ModelLoadError, match="no such directory"):
        make(options(model="/nowhere"), engine.model, True, engine)
    with pretended_gpu():
        moved = tiny_model("Llama")
        to_gpu(moved)
        there = PackedModel(moved, 100, row_exact=False, kernels=False)  # as if it were split among ranks
    with pytest.raises(ModelLoadError, match=r"needs a target .* not split among ranks \(--tensor-parallel 1\)"):
        make(options(model=str(knowing)), there, True, engine)
