"""EAGLE-3 beside a target: what its network reads, and what it costs."""

from pathlib import Path

import pytest
import torch

from draftwire_core.engine.drafters.eagle.eagle3 import EagleOptions, eagle3_drafter
from draftwire_core.engine.drafters.eagle.eagle_files import load_eagle
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.verification_engine import VerificationEngine
from draftwire_core.engine.errors import FieldError
from tests.harness.engine.attached_engine import Attached
from tests.harness.engine.engines import VOCABULARY, ScriptedDrafter, engine_of, generate, packed, tiny_model
from tests.harness.engine.feature_engine import COMPILED, engine_with, inner_of, local_of
from tests.harness.models.eagle_checkpoints import eagle_config, write_eagle
from tests.harness.models.eagle_training import SPECS, documents, plain_tokens, train_eagle


@pytest.fixture
def plain() -> dict[int, list[int]]:
    return plain_tokens()


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eagle(tmp_path_factory.mktemp("useless"), eagle_config(draft_vocab_size=150))


def test_a_reduced_vocabulary_drafts_the_targets_ids(trained: Path, plain: dict[int, list[int]]) -> None:
    eagle = load_eagle(trained, TargetShape(3, 64, VOCABULARY, "LlamaForCausalLM"), torch.float32)
    assert eagle.target_ids is not None and len(eagle.target_ids) < VOCABULARY
    result = generate(engine_with("eagle3", trained), SPECS[:1])
    assert result.tokens[0] == plain[0]
    assert result.accepted > 15


@pytest.mark.parametrize("weights", ["q8_0", "q4_0", "int8"])
def test_with_quantised_weights(weights: str, tmp_path: Path) -> None:
    target = packed(tiny_model("Llama", torch.bfloat16, **COMPILED), 1000)
    expected = generate(engine_of(packed(tiny_model("Llama", torch.bfloat16, **COMPILED), 1000)), SPECS).tokens
    engine = engine_of(target)
    engine.__class__ = Attached
    engine.add_drafter("eagle", eagle3_drafter(EagleOptions(str(write_eagle(tmp_path)), weights=weights), target))
    assert local_of(engine).model.weight_type == weights
    result = generate(engine, SPECS)
    assert result.tokens == expected
    assert result.drafted > 0


def test_beside_a_drafter_that_sends_proposals(trained: Path, plain: dict[int, list[int]]) -> None:
    assert generate(engine_with("eagle3", trained), SPECS, ScriptedDrafter(plain)).tokens == plain


@pytest.mark.slow
class TestTheWholeVocabulary:
    def test_greedy(self, plain: dict[int, list[int]], tmp_path: Path) -> None:
        result = generate(engine_with("eagle3", train_eagle(tiny_model("Llama"), documents(), tmp_path)), SPECS)
        assert result.tokens == plain
        assert result.accepted > 80

    def test_with_one_that_knows_nothing(self, useless: Path, plain: dict[int, list[int]]) -> None:
        result = generate(engine_with("eagle3", useless), SPECS)
        assert result.tokens == plain
        assert result.drafted > 50


def test_a_prefix_from_the_cache_is_read_from_the_features_beside_it(
    trained: Path, plain: dict[int, list[int]]
) -> None:
    engine = engine_with("eagle3", trained)
    first = generate(engine, SPECS[2:3])
    read = rows_read(engine)
    again = generate(engine, SPECS[2:3])
    assert again.tokens == first.tokens == {2: plain[2]}
    assert again.accepted >= first.accepted - 3
    assert read[0] >= len(SPECS[2].tokens) - 1, "the whole prompt, though the target did not compute it again"


def rows_read(engine: VerificationEngine) -> list[int]:
    """Counts how many committed tokens the drafter reads from now on."""
    drafter, count = inner_of(engine), [0]
    inner = drafter._read_committed

    def counted(builder: object, key: object, draft: object, rows: int) -> bool:
        count[0] += rows
        return bool(inner(builder, key, draft, rows))

    drafter._read_committed = counted
    return count


def test_each_committed_token_is_read_once_and_rejected_ones_never(trained: Path, plain: dict[int, list[int]]) -> None:
    engine = engine_with("eagle3", trained, max_step_rows=16)
    count = rows_read(engine)
    assert generate(engine, SPECS).tokens == plain
    lengths = [len(spec.tokens) + len(plain[spec.sequence_id]) for spec in SPECS]
    # Not the first token, and not those of the last step.
    assert sum(lengths) - 4 * 12 <= count[0] <= sum(lengths) - 4


def test_nothing_is_mapped_while_the_drafter_rests(
    trained: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with("eagle3", trained)
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: False)
    monkeypatch.setattr(local_of(engine).tap, "mapping", None)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.drafted == 0


def test_one_that_has_rested_reads_what_was_computed_meanwhile(
    trained: Path, plain: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, steps = engine_with("eagle3", trained), 0
    count_rows = rows_read(engine)
    settle = DraftingAccounts.settle

    def count(accounts: DraftingAccounts, *args: object) -> None:
        nonlocal steps
        steps += 1
        settle(accounts, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(DraftingAccounts, "settle", count)
    monkeypatch.setattr(DraftingAccounts, "open", lambda *_: steps % 4 >= 2)
    result = generate(engine, SPECS)
    assert result.tokens == plain
    assert result.accepted > 0
    lengths = [len(spec.tokens) + len(plain[spec.sequence_id]) for spec in SPECS]
    # Not the first tokens, and not those of the last pause and step.
    assert sum(lengths) - 4 * 16 <= count_rows[0] <= sum(lengths) - 4


def test_bad_weights(trained: Path) -> None:
    with pytest.raises(FieldError, match=r"weights: must be one of checkpoint, .*, got 'q2'"):
        EagleOptions(str(trained), weights="q2")
