"""DFlash beside a target: its guesses save steps, and no token depends on them."""

from pathlib import Path

import pytest

from speculative_engine.drafters.blocks.block_drafter import BlockDrafter
from speculative_engine.drafters.blocks.block_network import Reading
from speculative_engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from speculative_engine.drafters.drafter import TappingDrafter
from speculative_engine.drafters.features.local_feature_drafter import LocalFeatureDrafter
from speculative_engine.engine.sequence import SequenceSpec
from speculative_engine.engine.verification_engine import VerificationEngine
from speculative_engine.field_error import FieldError
from speculative_engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.engines import GREEDY, engine_of, generate, packed, specs_of, tiny_model
from tests.harness.models.dflash_checkpoints import dflash_config, write_dflash
from tests.harness.models.eagle_training import SPECS, plain_tokens

SAMPLED = [SamplingParams(temperature=0.8, seed=seed) for seed in range(4)]
MIXED = specs_of([spec.tokens for spec in SPECS], 40, [GREEDY, SAMPLED[1], GREEDY, SAMPLED[3]])


class Attached(VerificationEngine):
    """An engine that attaches all its drafters to every sequence."""

    def add(self, spec: SequenceSpec) -> None:
        super().add(spec)
        for source in self._local._drafters:
            self.attach(spec.sequence_id, source)


@pytest.fixture
def plain() -> dict[int, list[int]]:
    return plain_tokens()


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dflash(tmp_path_factory.mktemp("useless"), dflash_config(draft_vocab_size=150))


def engine_with(directory: Path, slots: int = 1000, **limits: int) -> VerificationEngine:
    engine = engine_of(packed(tiny_model("Llama"), slots), **limits)
    engine.__class__ = Attached
    drafter = dflash_drafter(DflashOptions(str(directory)), engine.model)
    drafter._share = 0.01
    engine.add_drafter("dflash", drafter)
    return engine


def drafter_of(engine: VerificationEngine) -> LocalFeatureDrafter:
    drafter = engine._local._drafters["dflash"]
    assert isinstance(drafter, LocalFeatureDrafter)
    assert isinstance(drafter, TappingDrafter)
    return drafter


@pytest.mark.parametrize("specs", [SPECS, MIXED])
def test_one_that_knows_nothing_changes_no_token(useless: Path, specs: list[SequenceSpec]) -> None:
    expected = generate(engine_of(packed(tiny_model("Llama"), 1000)), specs, together=False).tokens
    engine = engine_with(useless)
    result = generate(engine, specs)
    assert result.tokens == expected
    assert result.drafted > 50
    assert engine.model.pool.used == 0
    assert drafter_of(engine).model.pool.used == 0


def test_a_window_caps_how_far_back_it_reads(useless: Path) -> None:
    target = packed(tiny_model("Llama"), 1000)
    drafter = dflash_drafter(DflashOptions(str(useless), window=12), target)
    drafter._share = 0.01
    engine = engine_of(target)
    engine.__class__ = Attached
    engine.add_drafter("dflash", drafter)
    inner = drafter._drafter
    assert isinstance(inner, BlockDrafter)
    read: list[int] = []
    network = inner._network.read

    def counted(reading: Reading) -> None:
        read.extend(reading.positions)
        network(reading)

    inner._network.read = counted  # type: ignore[method-assign]
    spec = SPECS[2]
    tokens = generate(engine, [spec]).tokens[2]
    assert tokens == plain_tokens()[2]
    # A position is that of the token behind the feature.
    assert read[0] == len(spec.tokens) + 1 - 12 + 1, "a token was committed before it looked"
    assert read == list(range(read[0], read[-1] + 1))


def test_bad_options() -> None:
    with pytest.raises(FieldError, match="must be at least 0, got -1"):
        DflashOptions("somewhere", window=-1)
