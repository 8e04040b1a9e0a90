"""A draft model with a part of its vocabulary: the same logits for it, and no other token is drafted."""

import pytest
import torch

from draftwire_core.engine.drafters.model.reduced_vocabulary import drafted_tokens, reduce_vocabulary
from draftwire_core.engine.errors import FieldError, ModelLoadError
from draftwire_core.engine.loading.methods import LocalModelOptions, local_model_drafter
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.checkout import MODELS
from tests.harness.engine.engines import GREEDY, engine_of, generate, random_tokens, specs_of, tiny_model

TOKENS = [7, 50, 51, 80, 299]


def logits_of(model: PackedModel) -> torch.Tensor:
    builder, slots = BatchBuilder(), model.pool.take(3)
    rows = [builder.add_row(token, at, int(slots[at]), wants_logits=True) for at, token in enumerate((5, 9, 80))]
    builder.add_lane(slots[:0], rows)
    logits = model.forward(builder.build(model.group_size, model.device)).clone()
    model.pool.give_back(slots)
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("architecture", "biased"), [("Llama", False), ("Phi", True), ("Gemma3", False)])
def test_logits_are_those_of_the_whole_head(architecture: str, biased: bool, dtype: torch.dtype) -> None:
    library = tiny_model(architecture, dtype)
    model = PackedModel(library, 100, row_exact=False)
    whole = logits_of(model)
    reduce_vocabulary(model, torch.tensor(TOKENS))
    assert model.vocab_size == whole.shape[1]
    assert (getattr(model.model.get_output_embeddings(), "bias", None) is not None) == biased
    error = 0.02 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(
        logits_of(model).float(), whole[:, TOKENS].float(), rtol=0, atol=error * float(whole.abs().max())
    )


def test_special_tokens_and_characters_come_first() -> None:
    vocabulary = Tokenizer.load(str(MODELS / "target")).vocabulary()
    size = len(vocabulary)
    kept = drafted_tokens(vocabulary, 300, size).tolist()
    assert kept == sorted(set(kept))
    assert len(kept) == 300
    assert set(vocabulary.specials.values()) <= set(kept)
    assert {index for index, spelling in enumerate(vocabulary.spellings) if len(spelling) == 1} <= set(kept)
    assert drafted_tokens(vocabulary, size, size).tolist() == [*range(size)]
    with pytest.raises(ModelLoadError, match="option vocabulary: must be at least"):
        drafted_tokens(vocabulary, 100, size)


def test_it_drafts_of_these_tokens_alone_and_changes_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    target = PackedModel.load(str(MODELS / "target"), slots=2000)
    specs = specs_of([random_tokens(9, seed=1), random_tokens(20, seed=2)], 24, GREEDY)
    plain = generate(engine_of(target), specs).tokens
    drafter = local_model_drafter(LocalModelOptions(str(MODELS / "draft"), vocabulary=1024), target)
    drafted = drafter.model.drafted
    assert drafted is not None
    assert len(drafted) == 1024
    engine = engine_of(target)
    engine.add_drafter("draft", drafter)
    tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    seen: set[int] = set()
    for spec in specs:
        engine.add(spec)
        engine.attach(spec.sequence_id, "draft")
    while engine.running:
        for sequence in engine._running.values():
            seen |= {node.token for node in sequence.tree.nodes()}
        for outcome in engine.step().outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
    assert tokens == plain
    assert seen <= set(drafted.tolist())


@pytest.mark.parametrize("count", [-1, 100])
def test_a_number_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(FieldError, match="must be 0 or at least 1024"):
        LocalModelOptions("m", vocabulary=count)


def test_a_draft_model_with_another_tokenizer_is_refused() -> None:
    target = PackedModel.load(str(MODELS / "target"), slots=500)
    with pytest.raises(ModelLoadError, match="option vocabulary: applies to draft models with the target's tokenizer"):
        local_model_drafter(LocalModelOptions(str(MODELS / "draft-other"), vocabulary=2048), target)
