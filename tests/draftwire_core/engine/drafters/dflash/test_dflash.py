"""DFlash beside a target: how far back it reads, and how wide it drafts."""

from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.blocks.block_drafter import BlockDrafter
from draftwire_core.engine.drafters.blocks.block_network import Reading
from draftwire_core.engine.drafters.dflash.dflash import DflashOptions
from draftwire_core.engine.errors import FieldError
from tests.harness.engine.engines import engine_of, generate, packed, tiny_model
from tests.harness.engine.feature_engine import COMPILED, engine_on, engine_with, inner_of
from tests.harness.models.dflash_checkpoints import dflash_config, write_dflash
from tests.harness.models.dflash_training import train_dflash
from tests.harness.models.eagle_training import SPECS, documents, plain_tokens


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dflash(tmp_path_factory.mktemp("useless"), dflash_config(draft_vocab_size=150))


@pytest.mark.slow
class TestMoreTraining:
    def test_one_that_knows_nothing_changes_no_token(self, useless: Path) -> None:
        result = generate(engine_with("dflash", useless), SPECS)
        assert result.tokens == plain_tokens()
        assert result.drafted > 50

    def test_greedy(self, tmp_path: Path) -> None:
        result = generate(engine_with("dflash", train_dflash(tiny_model("Llama"), documents(), tmp_path)), SPECS)
        assert result.tokens == plain_tokens()
        assert result.accepted > 60, "of 160 tokens"

    def test_a_target_whose_layers_are_compiled(self, tmp_path: Path) -> None:
        base = tiny_model("Llama", torch.bfloat16, **COMPILED)
        expected = generate(engine_of(packed(base, 1000)), SPECS).tokens
        texts = [[*spec.tokens, *expected[spec.sequence_id]] for spec in SPECS]
        wide = tiny_model("Llama", torch.float32, **COMPILED)
        wide.load_state_dict(base.state_dict())
        result = generate(engine_on(base, "dflash", train_dflash(wide, texts, tmp_path)), SPECS)
        assert result.tokens == expected
        assert result.accepted > 30


def test_a_window_caps_how_far_back_it_reads(useless: Path) -> None:
    engine = engine_with("dflash", useless, options={"window": 12})
    inner = inner_of(engine)
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


def test_chains(useless: Path) -> None:
    engine = engine_with("dflash", useless, options={"width": 1})
    assert generate(engine, SPECS).tokens == plain_tokens()
    with pytest.raises(FieldError, match="must be from 1 to 16, got 0"):
        DflashOptions("somewhere", width=0)
