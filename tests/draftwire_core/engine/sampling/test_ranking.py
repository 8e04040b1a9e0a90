"""A ranking finds, without tensors, what the sampler finds for the same rows as a batch."""

import pytest
import torch

from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.kernels.library import LIBRARY
from draftwire_core.engine.sampling.compiled_sampler import Ranking, best_tokens
from draftwire_core.engine.sampling.gumbel import MAX_POSITION
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="there is no compiled library")

PARAMS = [
    SamplingParams(temperature=0.0, top_k=3, seed=1),
    SamplingParams(temperature=0.7, seed=2**64 - 1),
    SamplingParams(temperature=1e39, top_k=5, seed=3),
    SamplingParams(temperature=1.3, top_p=0.9, min_p=0.07, seed=4),
    SamplingParams(temperature=0.3, typical_p=0.5, seed=5),
    SamplingParams(temperature=1.0, seed=6),
]
POSITIONS = [0, 1, 77, 4096, 12345, MAX_POSITION]


@pytest.mark.parametrize("count", [1, len(PARAMS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_and_log_probabilities_are_those_of_the_batch(count: int, dtype: torch.dtype) -> None:
    wide = (4 * torch.randn(count, 300, generator=torch.Generator().manual_seed(count))).to(dtype)
    wide[-1, 5] = torch.nan if count > 1 else 0.0
    logits = wide[:, :290]
    ranking = Ranking(PARAMS[:count], POSITIONS[:count])
    batch = SamplingBatch.build(PARAMS[:count], POSITIONS[:count])
    tokens, _, log_probs = best_tokens(logits, batch, 7, log_probs=True)
    assert log_probs is not None
    assert ranking.candidates(logits, 7) == (tokens.tolist(), log_probs.tolist())
    assert ranking.tokens(logits) == tokens[:, 0].tolist()


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(FieldError, match="position"):
        Ranking(PARAMS[:1], [MAX_POSITION + 1])
    with pytest.raises(ValueError, match="of 1 rows"):
        Ranking(PARAMS[:1], [0]).tokens(torch.zeros(2, 64))
