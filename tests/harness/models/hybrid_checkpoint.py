"""Random checkpoints of models with recurrent layers, with a tokenizer of words."""

from pathlib import Path

import torch

from tests.harness.engine.engines import VOCABULARY
from tests.harness.engine.recurrent_models import recurrent_model
from tests.harness.models.tiny_checkpoint import SPECIAL_TOKENS, write_tokenizer


def write_hybrid(directory: Path, name: str, *, seed: int = 0, noise: float = 0.0) -> Path:
    """Writes a model of `RECURRENT_MODELS`.

    noise: of the weights, in standard deviations; one with a little is a draft model of the one without.
    """
    model = recurrent_model(name, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * parameter.std() * noise)
    model.save_pretrained(directory)
    write_tokenizer(directory, words=VOCABULARY - len(SPECIAL_TOKENS))
    return directory
