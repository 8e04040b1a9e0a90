"""A grown EAGLE-3 drafter guesses the same as the small one."""

from pathlib import Path

import torch

from draftwire_core.engine.drafters.eagle.eagle_files import Eagle, load_eagle
from draftwire_core.engine.drafters.features.draft_network import TargetShape
from draftwire_core.engine.model.packed_model import PackedModel
from models.eagle_growth import inflate_eagle
from tests.harness.engine.engines import VOCABULARY
from tests.harness.engine.feature_pass import logits_of
from tests.harness.models.eagle_checkpoints import eagle_config, write_eagle

SMALL, LARGE = 64, 256
TOKENS = [5, 9, 14, 23, 42]


def guesses_of(eagle: Eagle, states: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        features = eagle.mapping(states)
    return logits_of(PackedModel(eagle.model, 32, row_exact=False), TOKENS, features)


def test_guesses_stay(tmp_path: Path) -> None:
    config = eagle_config(draft_vocab_size=150, norm_before_residual=True)
    small = write_eagle(tmp_path / "small", config)
    inflate_eagle(small, tmp_path / "large", LARGE)
    states = torch.randn(len(TOKENS), 3, SMALL)
    expected = guesses_of(
        load_eagle(small, TargetShape(3, SMALL, VOCABULARY, "LlamaForCausalLM"), torch.float32), states.flatten(1)
    )
    grown = load_eagle(tmp_path / "large", TargetShape(3, LARGE, VOCABULARY, "LlamaForCausalLM"), torch.float32)
    assert grown.model.config.hidden_size == LARGE
    assert grown.mapping.fc.weight.shape == (LARGE, 3 * LARGE)
    wide = torch.cat([states, states.new_zeros(len(TOKENS), 3, LARGE - SMALL)], dim=2)
    torch.testing.assert_close(guesses_of(grown, wide.flatten(1)), expected, rtol=1e-4, atol=1e-4)
