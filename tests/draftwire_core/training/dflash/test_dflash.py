"""Places of blocks are counted, weighted and masked as in drafting, and written as speculators writes them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel
from transformers.integrations.mistral import tokenizer as mistral_tokenizer
from transformers.models.auto import tokenization_auto

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint
from draftwire_core.engine.drafters.dflash.dflash import DflashOptions, dflash_drafter
from draftwire_core.engine.drafters.dflash.dflash_files import load_dflash
from draftwire_core.training.data.texts import Windows
from draftwire_core.training.dflash import training
from draftwire_core.training.dflash.anchored_blocks import AnchoredBlocks
from draftwire_core.training.dflash.initial_network import layers_read, mask_token_of
from draftwire_core.training.dflash.training import decay_of
from draftwire_core.training.frozen_target.order import DflashOrder
from draftwire_core.training.frozen_target.preparation import Prepared
from tests.harness.engine.engines import packed, tiny_model
from tests.harness.models.dflash_checkpoints import as_original
from tests.harness.models.head_trainings import DOCUMENTS, shape_of, trainer_of


@pytest.mark.parametrize("draft_vocab", [0, 40])
def test_written_as_speculators_does(base: PreTrainedModel, target: Path, tmp_path: Path, draft_vocab: int) -> None:
    """The target's embedding is left out, and its whole output head."""
    made = trainer_of("dflash", base, tmp_path, block=4, draft_vocab=draft_vocab)
    made.save()
    written = load_dflash(tmp_path, shape_of(base), torch.float32)
    assert written.config == made.network.config
    assert written.lacking == {"embed_tokens.weight"} | (set() if draft_vocab else {"lm_head.weight"})
    if written.target_ids is not None:
        assert torch.equal(written.model.lm_head.weight, base.lm_head.weight[written.target_ids])
    speculators = json.loads((tmp_path / "config.json").read_text())["speculators_config"]
    assert speculators["verifier"] == {"name_or_path": str(target), "architectures": ["LlamaForCausalLM"]}
    assert speculators["proposal_methods"][0]["speculative_tokens"] == 3


def test_the_share_of_right_guesses_is_counted_where_those_before_are_the_text(
    base: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, as drafting would, against the counts over whole windows."""
    made = trainer_of("dflash", base, tmp_path, block=4, anchors=5, steps=40, batch=4, mask_token=0)
    made.train(lambda _: None)
    made.network.model.eval()
    windows = Windows([document[:13] for document in DOCUMENTS[:3]], 16, 4)
    right, asked = np.zeros(3), np.zeros(3)
    for document in DOCUMENTS[:3]:
        text = torch.tensor([document[:13]])
        with torch.no_grad():
            out = base(text, output_hidden_states=True)
            # The library's last state has been through the last norm; the drafter reads it before.
            states = dict(enumerate(out.hidden_states))
            angles = base.model.rotary_emb(states[1], torch.arange(13).unsqueeze(0))
            states[2] = base.model.layers[1](states[1], position_embeddings=angles)
            features = made.network.mapping(torch.cat([states[each] for each in made.network.aux_layers], dim=-1))
        for anchor in range(13):
            with torch.no_grad():
                blocks = AnchoredBlocks(made.network.config, made.network.model)
                place = torch.tensor([[anchor]])
                guesses = blocks.guess(features[:, :anchor], text[:, anchor : anchor + 1], place)[0, 0].argmax(-1)
            for ahead in range(3):
                if anchor + ahead > 12 or any(guesses[k] != text[0, anchor + 1 + k] for k in range(ahead)):
                    break
                asked[ahead] += 1
                right[ahead] += int(guesses[ahead] == out.logits[0, anchor + ahead].argmax())
    shares = right / np.maximum(asked, 1)
    assert made.accuracy(windows) == pytest.approx(shares[:1]), "too few blocks get beyond the first place"
    monkeypatch.setattr(training, "_FEWEST_SAMPLES", 0)
    assert made.accuracy(windows) == pytest.approx(shares)
    assert right.sum() > 0


def test_the_targets_embedding_is_that_of_drafting(tmp_path: Path) -> None:
    """Gemma's scales its vectors, which is not done by speculators."""
    base = tiny_model("Gemma3")
    made = trainer_of("dflash", base, tmp_path, block=4)
    made.save()
    drafter = dflash_drafter(DflashOptions(str(tmp_path)), packed(base), hub=False)
    tokens, weight = torch.arange(20), base.get_input_embeddings().weight
    torch.testing.assert_close(made._blocks._embed(tokens), weight[:20])
    torch.testing.assert_close(drafter.model.model.get_input_embeddings()(tokens), weight[:20])
    original = dflash_drafter(DflashOptions(str(as_original(tmp_path))), packed(base), hub=False)
    scaled = base.get_input_embeddings()(tokens)
    torch.testing.assert_close(original.model.model.get_input_embeddings()(tokens), scaled)
    assert scaled.abs().max() > 2 * weight[:20].abs().max()


def test_texts_shorter_than_the_anchors_of_a_step(base: PreTrainedModel, tmp_path: Path) -> None:
    made = trainer_of("dflash", base, tmp_path, [[5, 6, 7, 8], [9, 10, 11, 12]])
    losses: list[float] = []
    made.train(lambda progress: losses.extend(progress.losses), every=1)
    assert len(losses) == 12
    assert np.isfinite(losses).all()


def test_weights_of_places_fall_as_in_the_paper() -> None:
    assert decay_of(8) == pytest.approx(np.exp(-1 / 4))
    assert decay_of(16) > decay_of(10) > decay_of(8)


def test_the_layers_that_are_read() -> None:
    assert layers_read(36) == (2, 10, 18, 26, 34)
    assert layers_read(7) == (2, 3, 4, 5)
    assert layers_read(6) == (2, 3, 4)
    assert layers_read(5) == (1, 2, 5)
    assert layers_read(2) == (1, 2)
    assert layers_read(1) == (0, 1)


def test_the_token_that_stands_for_one_to_be_guessed(target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert mask_token_of(tokenizer, 200) == len(tokenizer), "an id that stands for no token"
    tokenizer.pad_token = tokenizer.eos_token = None
    with pytest.raises(ValueError, match="name one by --mask-token"):
        mask_token_of(tokenizer, len(tokenizer))
    tokenizer.eos_token = "</s>"
    assert mask_token_of(tokenizer, len(tokenizer)) == 1
    tokenizer.pad_token = "<s>"
    assert mask_token_of(tokenizer, len(tokenizer)) == 0
    tokenizer.mask_token = "<unk>"
    assert mask_token_of(tokenizer, 200) == 2


def test_mistrals_own_file_is_left_alone(
    base: PreTrainedModel, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With mistral-common installed, transformers prefers tekken.json to tokenizer.json."""
    monkeypatch.setitem(tokenization_auto.TOKENIZER_MAPPING_NAMES, base.config.model_type, "MistralCommonBackend")
    monkeypatch.setattr(mistral_tokenizer, "is_mistral_common_available", lambda: True)
    shutil.copytree(target, tmp_path / "target")
    (tmp_path / "target" / "tekken.json").write_text("{}")
    windows = Windows(DOCUMENTS, 32, 4)
    given = Prepared(Checkpoint.find(str(tmp_path / "target")), base, windows, windows, torch.float32)
    monkeypatch.setattr(training, "train", lambda order, ahead, say, make: (make(given), given))
    order = DflashOrder(model="m", prompts=[], out=tmp_path / "out")
    assert training.run(order, lambda line: None)
